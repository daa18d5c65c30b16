//! Identities of a world: tokens for everybody, and the files that the services know them by.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};

use skillyard::service::token::Token;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::Channel;

/// Who there is in every world.
const CALLERS: &str = "\
callers:
  operator: {roles: [operator]}
  executor: {roles: [executor], certificates: [\"spiffe://world/executor\"]}
  orchestrator: {roles: [orchestrator], agents: [\"*\"], certificates: [orchestrator.world]}
  other: {roles: [orchestrator], agents: [\"*\"]}
  narrow: {roles: [orchestrator], agents: [reader]}
  approver: {roles: [approver]}
  ann: {roles: [approver]}
  bob: {roles: [approver]}
  both: {roles: [orchestrator, approver], agents: [\"*\"]}
  nothing: {roles: []}
";
const NAMES: [&str; 10] =
    ["operator", "executor", "orchestrator", "other", "narrow", "approver", "ann", "bob", "both", "nothing"];

/// A channel that shows something, or nothing.
#[derive(Clone, Debug)]
pub struct Door {
    channel: Channel,
    show: Show,
}

/// What a client shows of itself.
#[derive(Clone, Debug, Default)]
pub struct Show(Option<http::HeaderValue>);

impl Show {
    /// A token.
    ///
    /// # Panics
    /// When it cannot be sent.
    #[must_use]
    pub fn token(token: &Token) -> Self {
        Self::header(&format!("Bearer {}", token.expose()))
    }

    /// Something in the header of tokens.
    ///
    /// # Panics
    /// When it cannot be sent.
    #[must_use]
    pub fn header(value: &str) -> Self {
        Self(Some(value.parse().unwrap()))
    }
}

impl Door {
    /// Over a channel.
    #[must_use]
    pub fn new(channel: Channel, show: Show) -> Self {
        Self { channel, show }
    }
}

impl Service<http::Request<Body>> for Door {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = <Channel as Service<http::Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        if let Some(value) = &self.show.0 {
            request.headers_mut().insert(http::header::AUTHORIZATION, value.clone());
        }
        self.channel.call(request)
    }
}

/// Everybody's token, and the files.
#[derive(Debug)]
pub struct Identities {
    directory: PathBuf,
    tokens: BTreeMap<String, Token>,
}

impl Identities {
    /// Makes tokens for everybody, and writes the files.
    pub fn new(directory: &Path) -> Self {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("callers.yaml"), CALLERS).unwrap();
        let mut identities = Self { directory: directory.to_owned(), tokens: BTreeMap::new() };
        for name in NAMES {
            identities.tokens.insert(name.to_owned(), Token::random().unwrap());
        }
        identities.write();
        identities
    }

    /// Where the hashes are.
    #[must_use]
    pub fn tokens_file(&self) -> PathBuf {
        self.directory.join("tokens")
    }

    /// Where it is said what everybody may do.
    #[must_use]
    pub fn callers_file(&self) -> PathBuf {
        self.directory.join("callers.yaml")
    }

    /// A file with one's token alone.
    #[must_use]
    pub fn token_file(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.token"))
    }

    /// One's token.
    ///
    /// # Panics
    /// When there is nobody of that name.
    #[must_use]
    pub fn token(&self, name: &str) -> &Token {
        &self.tokens[name]
    }

    /// Gives one a new token in place of the old one.
    ///
    /// # Panics
    /// When the files cannot be written.
    pub fn rotate(&mut self, name: &str) {
        self.tokens.insert(name.to_owned(), Token::random().unwrap());
        self.write();
    }

    /// One more token for somebody who has one, which stays good beside it.
    ///
    /// # Panics
    /// When the files cannot be written.
    pub fn another(&self, name: &str) -> Token {
        let token = Token::random().unwrap();
        let lines = fs::read_to_string(self.tokens_file()).unwrap();
        replace(&self.tokens_file(), format!("{lines}{}\n", token.line(name).unwrap()));
        token
    }

    fn write(&self) {
        let mut lines = String::new();
        for (name, token) in &self.tokens {
            replace(&self.token_file(name), format!("{}\n", token.expose()));
            lines += &format!("{}\n", token.line(name).unwrap());
        }
        replace(&self.tokens_file(), &lines);
    }
}

/// Replaces a file in one step.
///
/// # Panics
/// When it cannot be written.
pub fn replace(path: &Path, content: impl AsRef<[u8]>) {
    let beside = path.with_extension("beside");
    fs::write(&beside, content).unwrap();
    fs::rename(beside, path).unwrap();
}
