//! The RPCs: encoding of requests and meaning of responses.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use crate::client::{ATTEMPT_TIMEOUT, Client};
use crate::connection::{CallEnd, Connection};
use crate::error::{Error, Failure};
use crate::grpc;
use crate::messages::{
    Compare, CompareResult, CompareTarget, CompareWith, DeleteRangeRequest, DeleteRangeResponse,
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, Operation, PutRequest, PutResponse, RangeRequest,
    RangeResponse, RequestOp, ResponseHeader, TxnRequest, TxnResponse,
};
use crate::types::{KeyValue, Lease, LeaseId, Listing, Revision, prefix_range};
use crate::watch::Watch;

const RANGE: &str = "/etcdserverpb.KV/Range";
const PUT: &str = "/etcdserverpb.KV/Put";
const DELETE_RANGE: &str = "/etcdserverpb.KV/DeleteRange";
const TXN: &str = "/etcdserverpb.KV/Txn";
const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const LEASE_REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

/// The results of [`Client::delete_if_unchanged`] and [`Client::delete`] concern the attempt
/// that succeeded: if an earlier attempt was interrupted after it had an effect, they are
/// `false`.
impl Client {
    /// One key, if it exists.
    pub async fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, Error> {
        let request = RangeRequest {
            key: Bytes::copy_from_slice(key),
            range_end: Bytes::new(),
        };
        Ok(self.range(&request).await?.kvs.pop())
    }

    /// The keys that start with `prefix`, all at one revision.
    pub async fn range_prefix(&self, prefix: &[u8]) -> Result<Listing, Error> {
        let (key, range_end) = prefix_range(prefix);
        self.range(&RangeRequest { key, range_end }).await
    }

    async fn range(&self, request: &RangeRequest) -> Result<Listing, Error> {
        self.unary(RANGE, request, |response: RangeResponse| {
            Ok(Listing {
                revision: revision(response.header)?,
                kvs: response.kvs.into_iter().map(KeyValue::from).collect(),
            })
        })
        .await
    }

    /// Creates or changes a key. With a lease, the key is deleted when the lease ends.
    pub async fn put(
        &self,
        key: &[u8],
        value: &[u8],
        lease: Option<LeaseId>,
    ) -> Result<Revision, Error> {
        let request = PutRequest {
            key: Bytes::copy_from_slice(key),
            value: Bytes::copy_from_slice(value),
            lease: lease.map_or(0, LeaseId::get),
        };
        self.unary(PUT, &request, |response: PutResponse| {
            revision(response.header)
        })
        .await
    }

    /// Deletes a key; returns whether it existed.
    pub async fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        let request = DeleteRangeRequest {
            key: Bytes::copy_from_slice(key),
        };
        self.unary(DELETE_RANGE, &request, |response: DeleteRangeResponse| {
            Ok(response.deleted > 0)
        })
        .await
    }

    /// Deletes a key if it was last changed at `mod_revision`; returns whether that was so.
    pub async fn delete_if_unchanged(
        &self,
        key: &[u8],
        mod_revision: Revision,
    ) -> Result<bool, Error> {
        let key = Bytes::copy_from_slice(key);
        let request = TxnRequest {
            compare: vec![Compare {
                result: CompareResult::Equal.into(),
                target: CompareTarget::Mod.into(),
                key: key.clone(),
                with: Some(CompareWith::ModRevision(mod_revision.get())),
            }],
            success: vec![RequestOp {
                request: Some(Operation::DeleteRange(DeleteRangeRequest { key })),
            }],
        };
        self.unary(
            TXN,
            &request,
            |response: TxnResponse| Ok(response.succeeded),
        )
        .await
    }

    /// Grants a lease of at least `ttl`, in whole seconds. An interrupted attempt may leave a
    /// lease behind, which expires.
    pub async fn grant(&self, ttl: Duration) -> Result<Lease, Error> {
        let request = LeaseGrantRequest {
            ttl: whole_seconds(ttl),
        };
        self.unary(
            LEASE_GRANT,
            &request,
            |response: LeaseGrantResponse| match (response.id, lifetime(response.ttl)) {
                (0, _) | (_, None) => Err(malformed("a lease without an id or a lifetime")),
                (id, Some(ttl)) => Ok(Lease {
                    id: LeaseId::new(id),
                    ttl,
                }),
            },
        )
        .await
    }

    /// Renews a lease and returns its remaining time; `None` if the lease has ended and
    /// its keys are deleted.
    pub async fn keep_alive(&self, lease: LeaseId) -> Result<Option<Duration>, Error> {
        let request = LeaseKeepAliveRequest { id: lease.get() };
        // A stream in etcd's API; with one message each way it is like a unary call.
        let kept = self
            .unary(
                LEASE_KEEP_ALIVE,
                &request,
                |response: LeaseKeepAliveResponse| Ok(lifetime(response.ttl)),
            )
            .await;
        match kept {
            Err(error) if error.is_lease_not_found() => Ok(None),
            kept => kept,
        }
    }

    /// Revokes a lease and deletes its keys. Succeeds if it has ended already.
    pub async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        let request = LeaseRevokeRequest { id: lease.get() };
        let revoked = self
            .unary(LEASE_REVOKE, &request, |LeaseRevokeResponse {}| Ok(()))
            .await;
        match revoked {
            Err(error) if error.is_lease_not_found() => Ok(()),
            revoked => revoked,
        }
    }

    /// Watches the keys that start with `prefix`: every change from revision `from` on. After
    /// a listing that is the revision after the listing's.
    pub async fn watch_prefix(&self, prefix: &[u8], from: Revision) -> Result<Watch, Error> {
        let request = Watch::request(prefix, from);
        let frame = grpc::encode(&request)?;
        self.try_each(|connection| Watch::open(connection, frame.clone(), from))
            .await
    }

    async fn unary<M, T>(
        &self,
        method: &'static str,
        request: &impl Message,
        read: impl Fn(M) -> Result<T, Failure>,
    ) -> Result<T, Error>
    where
        M: Message + Default,
    {
        let frame = grpc::encode(request)?;
        self.try_each(|connection| {
            let frame = frame.clone();
            let read = &read;
            async move {
                read(M::decode(
                    unary_response(&connection, method, frame).await?,
                )?)
            }
        })
        .await
    }
}

/// Sends one message, and waits for the response and the end of the call.
async fn unary_response(
    connection: &Connection,
    method: &'static str,
    frame: Bytes,
) -> Result<Bytes, Failure> {
    let then = CallEnd::AfterResponse(ATTEMPT_TIMEOUT);
    let (_stream, mut responses) = connection.call(method, frame, then).await?;
    let message = responses
        .next()
        .await?
        .ok_or_else(|| malformed("success without a message"))?;
    match responses.next().await? {
        None => Ok(message),
        Some(_) => Err(malformed("two messages instead of one")),
    }
}

fn revision(header: Option<ResponseHeader>) -> Result<Revision, Failure> {
    header
        .map(|header| Revision::new(header.revision))
        .ok_or_else(|| malformed("an answer without a header"))
}

/// A TTL in etcd's seconds; `None` if it has expired.
fn lifetime(ttl: i64) -> Option<Duration> {
    u64::try_from(ttl)
        .ok()
        .filter(|&seconds| seconds > 0)
        .map(Duration::from_secs)
}

/// Rounded up, and at least one.
fn whole_seconds(ttl: Duration) -> i64 {
    let seconds = ttl
        .as_secs()
        .saturating_add(u64::from(ttl.subsec_nanos() > 0));
    i64::try_from(seconds.max(1)).unwrap_or(i64::MAX)
}

fn malformed(cause: &str) -> Failure {
    Failure::Malformed(cause.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_is_rounded_up_to_seconds() {
        assert_eq!(whole_seconds(Duration::ZERO), 1);
        assert_eq!(whole_seconds(Duration::from_millis(1500)), 2);
        assert_eq!(whole_seconds(Duration::from_secs(2)), 2);
        assert_eq!(whole_seconds(Duration::MAX), i64::MAX);
    }

    #[test]
    fn without_a_lifetime_a_lease_has_ended() {
        assert_eq!(lifetime(0), None);
        assert_eq!(lifetime(-1), None);
        assert_eq!(lifetime(3), Some(Duration::from_secs(3)));
    }
}
