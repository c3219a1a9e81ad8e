//! Restricts the addresses of peers to `--peer-cidrs`.

use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;
use skewbridge_peer_directory::ServedRecord;
use skewbridge_peer_directory::registry::Addresses;

/// Whether an address is in one of these networks; without networks every address is permitted. A
/// client that may write to the registry could otherwise direct requests of bridges to any address
/// (KEP-4020, Risks 5).
pub(super) fn is_permitted(address: SocketAddr, networks: &[IpNet]) -> bool {
    networks.is_empty() || networks.iter().any(|net| net.contains(&address.ip()))
}

/// Splits addresses into permitted and rejected ones.
pub(super) fn partition_permitted(
    published: Addresses,
    networks: &[IpNet],
) -> (Addresses, Addresses) {
    published
        .into_iter()
        .partition(|(_, advertised)| is_permitted(advertised.address, networks))
}

/// Removes the address of the server from its record unless it is permitted.
pub(super) fn keep_permitted_server(record: &mut ServedRecord, networks: &[IpNet]) {
    record.server = record.server.filter(|it| is_permitted(*it, networks));
}

/// Removes addresses and serving keys from a record. Where addresses are in a file of the
/// administrator, clients that may write Leases must not be able to change them.
pub(super) fn remove_addresses(record: &mut Arc<ServedRecord>) {
    if record.server.is_some() || record.bridge.is_some() || !record.serving_keys.is_empty() {
        let record = Arc::make_mut(record);
        record.server = None;
        record.bridge = None;
        record.serving_keys.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use skewbridge_peer_directory::registry::AdvertisedAddress;
    use skewbridge_peer_directory::{Identity, ServedApis};

    use super::*;

    #[test]
    fn addresses_are_removed_from_records_beside_an_address_file() {
        let served = ServedApis {
            index: Arc::default(),
            documents: [Arc::default(), Arc::default()],
            etags: [None, None],
            version: None,
            version_suffix: Arc::default(),
            by_bridge: false,
        };
        let identity = Identity::named("apiserver-a").unwrap();
        let left = SystemTime::UNIX_EPOCH;
        let mut record = ServedRecord::new(identity, &served, |_, _| false, left);
        record.server = "10.0.0.1:6443".parse().ok();
        record.bridge = "10.0.0.1:7443".parse().ok();
        record.serving_keys = vec![[7; 32]];
        record.bridge_left_at = Some(left);
        let mut record = Arc::new(record);
        remove_addresses(&mut record);
        assert_eq!((record.server, record.bridge), (None, None));
        assert!(record.serving_keys.is_empty());
        assert_eq!(
            record.bridge_left_at,
            Some(left),
            "the departure stays announced"
        );
        let before = record.clone();
        remove_addresses(&mut record);
        assert!(Arc::ptr_eq(&record, &before), "nothing to remove");
    }

    #[test]
    fn addresses_are_permitted_by_network() {
        let identity = |name: &str| Identity::named(name).unwrap();
        let published: Addresses = [
            ("a", "10.0.0.1:6443"),
            ("b", "10.1.0.1:6443"),
            ("c", "[fd00::1]:6443"),
        ]
        .map(|(name, address)| {
            let advertised = AdvertisedAddress::by_bridge(address.parse().unwrap());
            (identity(name), advertised)
        })
        .into();
        let rows: [(&[&str], &[&str]); 4] = [
            (&[], &["a", "b", "c"]),
            (&["10.0.0.0/24"], &["a"]),
            (&["10.0.0.0/8", "fd00::/64"], &["a", "b", "c"]),
            (&["192.0.2.0/24"], &[]),
        ];
        for (networks, expected) in rows {
            let networks: Vec<IpNet> = networks.iter().map(|net| net.parse().unwrap()).collect();
            let (permitted, rejected) = partition_permitted(published.clone(), &networks);
            let names: Vec<_> = permitted.keys().map(ToString::to_string).collect();
            assert_eq!(names, expected, "{networks:?}");
            assert_eq!(permitted.len() + rejected.len(), published.len());
            for (identity, advertised) in &published {
                let permitted = permitted.contains_key(identity);
                assert_eq!(is_permitted(advertised.address, &networks), permitted);
            }
        }
    }
}
