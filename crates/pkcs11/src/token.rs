//! A key in a token.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aws_lc_rs::digest::{Context, SHA256};
use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, UserType};
use cryptoki::slot::{Slot, TokenInfo};
use cryptoki::types::AuthPin;
use rustls::SignatureScheme;
use rustls_pki_types::CertificateDer;
use skewbridge_harness::{Certificate, ClientKey, KeyError};
use zeroize::Zeroizing;

use crate::objects::{chain_of, objects};
use crate::pin::{Asked, PinSource};
use crate::selection::Selection;
use crate::signature::{Kind, Plan};

/// How often a user may mistype: tokens lock themselves after three tries or more, and
/// say when one is left.
const TYPED_TRIES: usize = 3;

const LOCKED: &str = "its PIN is locked; unlock it with the tool of its maker";

/// Where a key is, and how it is reached.
#[derive(Debug, Clone)]
pub struct TokenConfig {
    /// The library of the token's maker.
    pub module: PathBuf,
    /// Which token, and which key.
    pub which: Selection,
    /// Where its PIN comes from.
    pub pin: PinSource,
    /// The certificate with its intermediates, where it is not in the token.
    pub certificate: Option<Vec<CertificateDer<'static>>>,
}

/// A key in a token.
///
/// The session stays open. If it is lost, with the token or otherwise, the library is
/// started anew and the token looked for again, once for each handshake.
pub struct TokenKey {
    config: TokenConfig,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Option<Open>,
    /// The token of the first session. Since then whoever has the terminal is not asked
    /// for anything: a command runs in it.
    first: Option<TokenName>,
    /// For the next session: a user who puts a token back is not asked again.
    pin: Option<KnownPin>,
    /// What was refused, as a digest with the token's name: it is not tried again. Tokens
    /// lock themselves after a few tries.
    refused: Option<[u8; 32]>,
}

/// A PIN and the token that has taken it: another one would count it as a wrong try.
struct KnownPin {
    of: TokenName,
    pin: Zeroizing<String>,
}

/// What tells a token from others.
#[derive(Clone, PartialEq, Eq)]
struct TokenName {
    label: String,
    serial: String,
    manufacturer: String,
}

impl TokenName {
    fn of(token: &TokenInfo) -> Self {
        Self {
            label: token.label().trim().to_owned(),
            serial: token.serial_number().trim().to_owned(),
            manufacturer: token.manufacturer_id().trim().to_owned(),
        }
    }
}

impl fmt::Display for TokenName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (serial {})", self.label, self.serial)
    }
}

/// Why a PIN has not opened a token.
enum Refused {
    /// Another one may.
    Wrong(KeyError),
    /// Nor would another.
    Otherwise(KeyError),
}

/// A session with a key. The fields are dropped in this order.
struct Open {
    session: Session,
    context: Pkcs11,
    token: TokenName,
    key: ObjectHandle,
    certificate: Certificate,
}

impl TokenKey {
    /// Opens the token, and asks for its PIN if it has one. What is wrong is said at
    /// once.
    pub fn open(config: TokenConfig) -> Result<Self, KeyError> {
        let key = Self {
            config,
            state: Mutex::default(),
        };
        let token = key.with(|open| Ok(open.token.clone()))?;
        key.lock().first = Some(token);
        Ok(key)
    }

    /// Does something with the session, in a new one if there is none.
    fn with<T>(&self, what: impl FnOnce(&Open) -> Result<T, KeyError>) -> Result<T, KeyError> {
        let mut state = self.lock();
        if state.open.is_none() {
            state.open = Some(self.begin(&mut state)?);
        }
        match &state.open {
            Some(open) => what(open),
            None => Err(KeyError::new("there is no session")),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A library that panics has lost its session: a new one is opened.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a session that does not do what it should.
    fn lose(&self) {
        if let Some(open) = self.lock().open.take() {
            let Open {
                session, context, ..
            } = open;
            drop(session);
            // Some libraries look for tokens only when they are started.
            let _ = context.finalize();
        }
    }

    fn failed(&self, cause: impl fmt::Display) -> KeyError {
        KeyError::new(format!("PKCS#11, {}: {cause}", self.config.which))
    }

    fn begin(&self, state: &mut State) -> Result<Open, KeyError> {
        let module = self.config.module.display();
        let context = Pkcs11::new(&self.config.module)
            .map_err(|error| KeyError::new(format!("--pkcs11-module {module}: {error}")))?;
        match context.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)) {
            Ok(()) | Err(Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => {}
            Err(error) => {
                return Err(KeyError::new(format!("--pkcs11-module {module}: {error}")));
            }
        }
        let opened = self.open_token(&context, state);
        match opened {
            Ok((session, token, key, certificate)) => Ok(Open {
                session,
                context,
                token,
                key,
                certificate,
            }),
            Err(error) => {
                let _ = context.finalize();
                Err(error)
            }
        }
    }

    fn open_token(
        &self,
        context: &Pkcs11,
        state: &mut State,
    ) -> Result<(Session, TokenName, ObjectHandle, Certificate), KeyError> {
        let slot = self.find_slot(context)?;
        let session = context
            .open_ro_session(slot)
            .map_err(|error| self.failed(error))?;
        let token = self.log_in(context, slot, &session, state)?;
        let pairs = self.pairs(&session).map_err(|error| self.failed(error))?;
        let (key, chain) = self.choose(pairs)?;
        let kind = self.kind(&session, key)?;
        let mechanisms = context
            .get_mechanism_list(slot)
            .map_err(|error| self.failed(error))?;
        let schemes = kind.schemes(&mechanisms);
        if schemes.is_empty() {
            return Err(self.failed("it cannot sign what TLS needs"));
        }
        let certificate = Certificate {
            chain,
            schemes,
            algorithm: kind.algorithm(),
        };
        Ok((session, token, key, certificate))
    }

    fn find_slot(&self, context: &Pkcs11) -> Result<Slot, KeyError> {
        let slots = context
            .get_slots_with_initialized_token()
            .map_err(|error| self.failed(error))?;
        let mut there = Vec::new();
        let mut found = Vec::new();
        for slot in slots {
            let Ok(token) = context.get_token_info(slot) else {
                continue;
            };
            let (label, serial) = (token.label(), token.serial_number());
            let which = &self.config.which;
            if which.is_token(label, serial, token.manufacturer_id(), token.model()) {
                found.push(slot);
            }
            there.push(format!("{:?} (serial {})", label.trim(), serial.trim()));
        }
        match (found.as_slice(), there.is_empty()) {
            ([slot], _) => Ok(*slot),
            ([], true) => Err(self.failed("it is not there; put it in")),
            ([], false) => Err(self.failed(format_args!(
                "it is not there; put it in. There is: {}",
                there.join(", ")
            ))),
            _ => Err(self.failed(format_args!(
                "several fit; say which by --pkcs11-token or --pkcs11-serial: {}",
                there.join(", ")
            ))),
        }
    }

    fn log_in(
        &self,
        context: &Pkcs11,
        slot: Slot,
        session: &Session,
        state: &mut State,
    ) -> Result<TokenName, KeyError> {
        let mut token = context
            .get_token_info(slot)
            .map_err(|error| self.failed(error))?;
        let name = TokenName::of(&token);
        if !token.login_required() {
            return Ok(name);
        }
        if token.user_pin_locked() {
            return Err(self.failed(LOCKED));
        }
        if token.protected_authentication_path() {
            // It has keys of its own for the PIN.
            let entered = session.login(UserType::User, None);
            return self.judge_login(entered.as_ref()).map(|()| name);
        }
        let tries = match self.config.pin {
            PinSource::Prompt => TYPED_TRIES,
            _ => 1,
        };
        let mut asked = if token.user_pin_final_try() {
            Asked::FirstAndLast
        } else {
            Asked::First
        };
        for left in (0..tries).rev() {
            match self.enter_pin(&token, session, state, asked) {
                Err(Refused::Wrong(_)) if left > 0 => {}
                Err(Refused::Wrong(error) | Refused::Otherwise(error)) => return Err(error),
                Ok(()) => return Ok(name),
            }
            token = context
                .get_token_info(slot)
                .map_err(|error| self.failed(error))?;
            if token.user_pin_locked() {
                return Err(self.failed(LOCKED));
            }
            asked = if token.user_pin_final_try() {
                Asked::ForTheLastTime
            } else {
                Asked::Again
            };
        }
        Err(self.failed("the PIN is wrong"))
    }

    fn enter_pin(
        &self,
        token: &TokenInfo,
        session: &Session,
        state: &mut State,
        asked: Asked,
    ) -> Result<(), Refused> {
        let name = TokenName::of(token);
        let remembered = state.pin.take_if(|known| known.of == name);
        let has_worked = remembered.is_some();
        let pin = if let Some(known) = remembered {
            known.pin
        } else {
            if let (PinSource::Prompt, Some(first)) = (&self.config.pin, &state.first) {
                return Err(Refused::Otherwise(self.too_late_to_ask(&name, first)));
            }
            if token.user_pin_final_try() && !self.config.pin.is_typed() {
                return Err(Refused::Otherwise(self.failed(
                    "one try is left for its PIN, which is not spent on a PIN that nobody types; \
                     leave out --pkcs11-pin-file and --pkcs11-askpass",
                )));
            }
            let pin = self.config.pin.get(&name.label, asked);
            pin.map_err(|cause| Refused::Otherwise(self.failed(cause)))?
        };
        let fingerprint = fingerprint(&name, &pin);
        if state.refused == Some(fingerprint) {
            return Err(Refused::Wrong(self.failed(
                "the PIN is wrong, as it was before; it is not tried again, or the token would be \
                 locked",
            )));
        }
        let secret = AuthPin::new(pin.as_str().into());
        let entered = session.login(UserType::User, Some(&secret));
        let is_wrong = matches!(&entered, Err(Error::Pkcs11(RvError::PinIncorrect, _)));
        if is_wrong {
            state.refused = Some(fingerprint);
        }
        // What has nothing to do with the PIN takes nothing from it.
        let judged = self.judge_login(entered.as_ref());
        if judged.is_ok() || (has_worked && !entered.is_err_and(|error| is_about_pin(&error))) {
            state.pin = Some(KnownPin { of: name, pin });
        }
        judged.map_err(if is_wrong {
            Refused::Wrong
        } else {
            Refused::Otherwise
        })
    }

    /// The user can be asked for a PIN when the plugin starts, and not in the middle of
    /// what a command shows at the same terminal.
    fn too_late_to_ask(&self, token: &TokenName, first: &TokenName) -> KeyError {
        let instead = if token == first {
            "start the command again to be asked for it".to_owned()
        } else {
            format!(
                "put the token {first} back in, or start the command again to be asked for the \
                 PIN of this one"
            )
        };
        self.failed(format_args!(
            "the PIN of the token {token} is needed, and nobody is asked while a command has the \
             terminal; {instead}, or give --pkcs11-pin-file or --pkcs11-askpass"
        ))
    }

    fn judge_login(&self, entered: Result<&(), &Error>) -> Result<(), KeyError> {
        match entered {
            Ok(()) | Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => Ok(()),
            Err(Error::Pkcs11(RvError::PinIncorrect, _)) => Err(self.failed("the PIN is wrong")),
            Err(Error::Pkcs11(RvError::PinLocked, _)) => Err(self.failed(LOCKED)),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Keys that are meant, with their names and certificates.
    fn pairs(&self, session: &Session) -> Result<Vec<Pair>, Error> {
        let certificates = objects(session, ObjectClass::CERTIFICATE)?;
        let all: Vec<Vec<u8>> = certificates.iter().map(|it| it.value.clone()).collect();
        let mut pairs = Vec::new();
        for key in objects(session, ObjectClass::PRIVATE_KEY)? {
            if !self.config.which.is_object(&key.label, &key.id) {
                continue;
            }
            let chain = match &self.config.certificate {
                Some(chain) => Some(chain.clone()),
                None => certificates
                    .iter()
                    .find(|it| {
                        if key.id.is_empty() {
                            it.label == key.label
                        } else {
                            it.id == key.id
                        }
                    })
                    .map(|leaf| chain_of(&leaf.value, &all)),
            };
            pairs.push(Pair {
                key: key.handle,
                label: key.label,
                chain,
            });
        }
        Ok(pairs)
    }

    fn choose(
        &self,
        pairs: Vec<Pair>,
    ) -> Result<(ObjectHandle, Vec<CertificateDer<'static>>), KeyError> {
        let labels: Vec<_> = pairs
            .iter()
            .map(|pair| format!("{:?}", pair.label))
            .collect();
        let has_key = !pairs.is_empty();
        let mut complete = pairs
            .into_iter()
            .filter_map(|pair| Some((pair.key, pair.chain?)));
        match (complete.next(), complete.next()) {
            (Some(pair), None) => Ok(pair),
            (Some(_), Some(_)) => Err(self.failed(format_args!(
                "several keys fit; say which by --pkcs11-object or --pkcs11-id: {}",
                labels.join(", ")
            ))),
            (None, _) if has_key => Err(self.failed(format_args!(
                "there is no certificate beside the key {}; give --client-certificate",
                labels.join(", ")
            ))),
            (None, _) => Err(self.failed("there is no such private key in it")),
        }
    }

    fn kind(&self, session: &Session, key: ObjectHandle) -> Result<Kind, KeyError> {
        let wanted = [AttributeType::KeyType, AttributeType::EcParams];
        let attributes = session
            .get_attributes(key, &wanted[..1])
            .map_err(|error| self.failed(error))?;
        match attributes.first() {
            Some(Attribute::KeyType(KeyType::RSA)) => return Ok(Kind::Rsa),
            Some(Attribute::KeyType(KeyType::EC)) => {}
            _ => return Err(self.failed("its key is neither RSA nor EC")),
        }
        let attributes = session
            .get_attributes(key, &wanted[1..])
            .map_err(|error| self.failed(error))?;
        let kind = match attributes.first() {
            Some(Attribute::EcParams(curve)) => Kind::of_curve(curve),
            _ => None,
        };
        kind.ok_or_else(|| self.failed("its key is on a curve other than P-256 and P-384"))
    }

    fn sign_once(&self, scheme: SignatureScheme, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let plan = Plan::of(scheme).ok_or_else(|| self.failed("an unknown signature"))?;
        self.with(|open| {
            let given = open
                .session
                .sign(&plan.mechanism(), open.key, &plan.data(message))
                .map_err(|error| self.failed(error))?;
            plan.signature(given)
                .ok_or_else(|| self.failed("what it signs is no signature"))
        })
    }
}

impl ClientKey for TokenKey {
    fn certificate(&self) -> Result<Certificate, KeyError> {
        self.with(|open| Ok(open.certificate.clone()))
    }

    fn sign(&self, scheme: SignatureScheme, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        // A session from before may be one with a token that has been taken out since.
        let is_from_before = self.lock().open.is_some();
        let signed = self.sign_once(scheme, message);
        let signed = signed.inspect_err(|_| self.lose());
        if signed.is_ok() || !is_from_before {
            return signed;
        }
        self.sign_once(scheme, message).inspect_err(|_| self.lose())
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenKey")
            .field("which", &self.config.which)
            .finish_non_exhaustive()
    }
}

/// Whether a token says that a PIN is not, or no more, its own.
fn is_about_pin(error: &Error) -> bool {
    use RvError::{PinExpired, PinIncorrect, PinInvalid, PinLenRange, PinLocked};
    matches!(
        error,
        Error::Pkcs11(
            PinIncorrect | PinLocked | PinExpired | PinInvalid | PinLenRange,
            _
        )
    )
}

struct Pair {
    key: ObjectHandle,
    label: String,
    chain: Option<Vec<CertificateDer<'static>>>,
}

fn fingerprint(token: &TokenName, pin: &str) -> [u8; 32] {
    let mut all = Context::new(&SHA256);
    for part in [&*token.label, &*token.serial, &*token.manufacturer, pin] {
        all.update(&(part.len() as u64).to_be_bytes());
        all.update(part.as_bytes());
    }
    let mut bytes = [0; 32];
    bytes.copy_from_slice(all.finish().as_ref());
    bytes
}
