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
use skewbridge_exec_proxy::{Certificate, ClientKey, KeyError};
use zeroize::Zeroizing;

use crate::objects::{chain_of, objects};
use crate::pin::{PinRequest, PinSource};
use crate::selection::Selection;
use crate::signature::{KeyKind, SigningScheme};

/// How many PINs a user may type: tokens lock themselves after three attempts or more, and
/// report the last attempt.
const MAX_TYPED_ATTEMPTS: usize = 3;

const PIN_LOCKED: &str = "its PIN is locked; unlock it with the vendor's tool";

/// The location of a key and how to access it.
#[derive(Debug, Clone)]
pub struct TokenConfig {
    /// The PKCS#11 library of the token's vendor.
    pub module: PathBuf,
    /// Which token and which key.
    pub which: Selection,
    /// The source of the PIN.
    pub pin: PinSource,
    /// The certificate with its intermediates, if it is not in the token.
    pub certificate: Option<Vec<CertificateDer<'static>>>,
}

/// A key in a token.
///
/// The session stays open. If it is lost, for example with the token, the library is
/// initialised again and the token looked up again, once per handshake.
pub struct TokenKey {
    config: TokenConfig,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Option<OpenSession>,
    /// The token of the first session. After that the user is not prompted any more,
    /// because a command uses the terminal.
    first: Option<TokenName>,
    /// Kept for the next session: a user who inserts the token again is not prompted.
    pin: Option<KnownPin>,
    /// The rejected PIN, as a digest with the token's name. It is not tried again, because
    /// tokens lock themselves after a few attempts.
    rejected: Option<[u8; 32]>,
}

/// A PIN and the token that has accepted it: another token would count it as a failed attempt.
struct KnownPin {
    of: TokenName,
    pin: Zeroizing<String>,
}

/// Identifies a token.
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

/// Why a login failed.
enum LoginError {
    /// The PIN was wrong; another PIN may work.
    WrongPin(KeyError),
    /// Another PIN would not help.
    Fatal(KeyError),
}

/// A session with a key. The fields are dropped in this order.
struct OpenSession {
    session: Session,
    context: Pkcs11,
    token: TokenName,
    key: ObjectHandle,
    certificate: Certificate,
}

impl TokenKey {
    /// Opens the token, and requests its PIN if it has one. Errors are reported immediately.
    pub fn open(config: TokenConfig) -> Result<Self, KeyError> {
        let key = Self {
            config,
            state: Mutex::default(),
        };
        let token = key.with_session(|open| Ok(open.token.clone()))?;
        key.lock().first = Some(token);
        Ok(key)
    }

    /// Uses the session, and opens one if there is none.
    fn with_session<T>(
        &self,
        what: impl FnOnce(&OpenSession) -> Result<T, KeyError>,
    ) -> Result<T, KeyError> {
        let mut state = self.lock();
        if state.open.is_none() {
            state.open = Some(self.open_session(&mut state)?);
        }
        match &state.open {
            Some(open) => what(open),
            None => Err(KeyError::new("there is no session")),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A library that panicked has lost its session: a new one is opened.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes a session that has failed.
    fn discard_session(&self) {
        if let Some(open) = self.lock().open.take() {
            let OpenSession {
                session, context, ..
            } = open;
            drop(session);
            // Some libraries detect tokens only during initialisation.
            let _ = context.finalize();
        }
    }

    fn error(&self, cause: impl fmt::Display) -> KeyError {
        KeyError::new(format!("PKCS#11, {}: {cause}", self.config.which))
    }

    fn open_session(&self, state: &mut State) -> Result<OpenSession, KeyError> {
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
            Ok((session, token, key, certificate)) => Ok(OpenSession {
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
            .map_err(|error| self.error(error))?;
        let token = self.log_in(context, slot, &session, state)?;
        let key_pairs = self
            .key_pairs(&session)
            .map_err(|error| self.error(error))?;
        let (key, chain) = self.choose(key_pairs)?;
        let kind = self.kind(&session, key)?;
        let mechanisms = context
            .get_mechanism_list(slot)
            .map_err(|error| self.error(error))?;
        let schemes = kind.schemes(&mechanisms);
        if schemes.is_empty() {
            return Err(self.error("it supports no signature scheme of TLS"));
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
            .map_err(|error| self.error(error))?;
        let mut present = Vec::new();
        let mut matching = Vec::new();
        for slot in slots {
            let Ok(token) = context.get_token_info(slot) else {
                continue;
            };
            let (label, serial) = (token.label(), token.serial_number());
            let which = &self.config.which;
            if which.matches_token(label, serial, token.manufacturer_id(), token.model()) {
                matching.push(slot);
            }
            present.push(format!("{:?} (serial {})", label.trim(), serial.trim()));
        }
        match (matching.as_slice(), present.is_empty()) {
            ([slot], _) => Ok(*slot),
            ([], true) => Err(self.error("it is not present; insert it")),
            ([], false) => Err(self.error(format_args!(
                "it is not present; insert it. Present tokens: {}",
                present.join(", ")
            ))),
            _ => Err(self.error(format_args!(
                "several tokens match; select one with --pkcs11-token or --pkcs11-serial: {}",
                present.join(", ")
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
            .map_err(|error| self.error(error))?;
        let name = TokenName::of(&token);
        if !token.login_required() {
            return Ok(name);
        }
        if token.user_pin_locked() {
            return Err(self.error(PIN_LOCKED));
        }
        if token.protected_authentication_path() {
            // The token has its own PIN pad.
            let entered = session.login(UserType::User, None);
            return self.check_login(entered.as_ref()).map(|()| name);
        }
        let attempts = match self.config.pin {
            PinSource::Prompt => MAX_TYPED_ATTEMPTS,
            _ => 1,
        };
        let mut request = if token.user_pin_final_try() {
            PinRequest::OnlyAttempt
        } else {
            PinRequest::First
        };
        for left in (0..attempts).rev() {
            match self.enter_pin(&token, session, state, request) {
                Err(LoginError::WrongPin(_)) if left > 0 => {}
                Err(LoginError::WrongPin(error) | LoginError::Fatal(error)) => return Err(error),
                Ok(()) => return Ok(name),
            }
            token = context
                .get_token_info(slot)
                .map_err(|error| self.error(error))?;
            if token.user_pin_locked() {
                return Err(self.error(PIN_LOCKED));
            }
            request = if token.user_pin_final_try() {
                PinRequest::LastRetry
            } else {
                PinRequest::Retry
            };
        }
        Err(self.error("the PIN is wrong"))
    }

    fn enter_pin(
        &self,
        token: &TokenInfo,
        session: &Session,
        state: &mut State,
        request: PinRequest,
    ) -> Result<(), LoginError> {
        let name = TokenName::of(token);
        let remembered = state.pin.take_if(|known| known.of == name);
        let was_accepted = remembered.is_some();
        let pin = if let Some(known) = remembered {
            known.pin
        } else {
            if let (PinSource::Prompt, Some(first)) = (&self.config.pin, &state.first) {
                return Err(LoginError::Fatal(self.no_prompt_error(&name, first)));
            }
            if token.user_pin_final_try() && !self.config.pin.is_typed() {
                return Err(LoginError::Fatal(self.error(
                    "one attempt is left for its PIN, and it is not spent on a PIN from a file or program; \
                     omit --pkcs11-pin-file and --pkcs11-askpass",
                )));
            }
            let pin = self.config.pin.get(&name.label, request);
            pin.map_err(|cause| LoginError::Fatal(self.error(cause)))?
        };
        let fingerprint = fingerprint(&name, &pin);
        if state.rejected == Some(fingerprint) {
            return Err(LoginError::WrongPin(self.error(
                "the PIN is wrong, as before; it is not tried again, because the token would be \
                 locked",
            )));
        }
        let secret = AuthPin::new(pin.as_str().into());
        let entered = session.login(UserType::User, Some(&secret));
        let is_wrong = matches!(&entered, Err(Error::Pkcs11(RvError::PinIncorrect, _)));
        if is_wrong {
            state.rejected = Some(fingerprint);
        }
        // An error unrelated to the PIN does not discard it.
        let checked = self.check_login(entered.as_ref());
        if checked.is_ok() || (was_accepted && !entered.is_err_and(|error| is_pin_error(&error))) {
            state.pin = Some(KnownPin { of: name, pin });
        }
        checked.map_err(if is_wrong {
            LoginError::WrongPin
        } else {
            LoginError::Fatal
        })
    }

    /// The user can be prompted for a PIN when the plugin starts, but not while a command
    /// writes to the same terminal.
    fn no_prompt_error(&self, token: &TokenName, first: &TokenName) -> KeyError {
        let instead = if token == first {
            "start the command again to enter it".to_owned()
        } else {
            format!(
                "insert the token {first} again, or start the command again to enter the \
                 PIN of this one"
            )
        };
        self.error(format_args!(
            "the PIN of the token {token} is needed, and the plugin does not prompt while a command uses the \
             terminal; {instead}, or give --pkcs11-pin-file or --pkcs11-askpass"
        ))
    }

    fn check_login(&self, entered: Result<&(), &Error>) -> Result<(), KeyError> {
        match entered {
            Ok(()) | Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => Ok(()),
            Err(Error::Pkcs11(RvError::PinIncorrect, _)) => Err(self.error("the PIN is wrong")),
            Err(Error::Pkcs11(RvError::PinLocked, _)) => Err(self.error(PIN_LOCKED)),
            Err(error) => Err(self.error(error)),
        }
    }

    /// The matching keys with their names and certificates.
    fn key_pairs(&self, session: &Session) -> Result<Vec<KeyPair>, Error> {
        let certificates = objects(session, ObjectClass::CERTIFICATE)?;
        let all: Vec<Vec<u8>> = certificates.iter().map(|it| it.value.clone()).collect();
        let mut key_pairs = Vec::new();
        for key in objects(session, ObjectClass::PRIVATE_KEY)? {
            if !self.config.which.matches_object(&key.label, &key.id) {
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
            key_pairs.push(KeyPair {
                key: key.handle,
                label: key.label,
                chain,
            });
        }
        Ok(key_pairs)
    }

    fn choose(
        &self,
        key_pairs: Vec<KeyPair>,
    ) -> Result<(ObjectHandle, Vec<CertificateDer<'static>>), KeyError> {
        let labels: Vec<_> = key_pairs
            .iter()
            .map(|pair| format!("{:?}", pair.label))
            .collect();
        let has_key = !key_pairs.is_empty();
        let mut complete = key_pairs
            .into_iter()
            .filter_map(|pair| Some((pair.key, pair.chain?)));
        match (complete.next(), complete.next()) {
            (Some(pair), None) => Ok(pair),
            (Some(_), Some(_)) => Err(self.error(format_args!(
                "several keys match; select one with --pkcs11-object or --pkcs11-id: {}",
                labels.join(", ")
            ))),
            (None, _) if has_key => Err(self.error(format_args!(
                "there is no certificate for the key {}; give --client-certificate",
                labels.join(", ")
            ))),
            (None, _) => Err(self.error("it contains no such private key")),
        }
    }

    fn kind(&self, session: &Session, key: ObjectHandle) -> Result<KeyKind, KeyError> {
        let wanted = [AttributeType::KeyType, AttributeType::EcParams];
        let attributes = session
            .get_attributes(key, &wanted[..1])
            .map_err(|error| self.error(error))?;
        match attributes.first() {
            Some(Attribute::KeyType(KeyType::RSA)) => return Ok(KeyKind::Rsa),
            Some(Attribute::KeyType(KeyType::EC)) => {}
            _ => return Err(self.error("its key is neither RSA nor EC")),
        }
        let attributes = session
            .get_attributes(key, &wanted[1..])
            .map_err(|error| self.error(error))?;
        let kind = match attributes.first() {
            Some(Attribute::EcParams(curve)) => KeyKind::of_curve(curve),
            _ => None,
        };
        kind.ok_or_else(|| self.error("the curve of its key is neither P-256 nor P-384"))
    }

    fn sign_once(&self, scheme: SignatureScheme, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let signing =
            SigningScheme::of(scheme).ok_or_else(|| self.error("unsupported signature scheme"))?;
        self.with_session(|open| {
            let raw = open
                .session
                .sign(&signing.mechanism(), open.key, &signing.data(message))
                .map_err(|error| self.error(error))?;
            signing
                .signature(raw)
                .ok_or_else(|| self.error("it returned an invalid signature"))
        })
    }
}

impl ClientKey for TokenKey {
    fn certificate(&self) -> Result<Certificate, KeyError> {
        self.with_session(|open| Ok(open.certificate.clone()))
    }

    fn sign(&self, scheme: SignatureScheme, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        // The token of an existing session may have been removed since.
        let had_session = self.lock().open.is_some();
        let signed = self.sign_once(scheme, message);
        let signed = signed.inspect_err(|_| self.discard_session());
        if signed.is_ok() || !had_session {
            return signed;
        }
        self.sign_once(scheme, message)
            .inspect_err(|_| self.discard_session())
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenKey")
            .field("which", &self.config.which)
            .finish_non_exhaustive()
    }
}

/// Whether the error means that the PIN is wrong or not valid any more.
fn is_pin_error(error: &Error) -> bool {
    use RvError::{PinExpired, PinIncorrect, PinInvalid, PinLenRange, PinLocked};
    matches!(
        error,
        Error::Pkcs11(
            PinIncorrect | PinLocked | PinExpired | PinInvalid | PinLenRange,
            _
        )
    )
}

struct KeyPair {
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
