//! How a root is looked at: by whom, and with which eyes. Looks at nothing.

use std::path::PathBuf;

use super::Host;

/// How a root is looked at. By default all of it, tolerant of what people write, and without a thought of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// What playbooks require is held against it, where it is known.
    pub host: Option<Host>,
    /// Forms that are Skillyard's own are warnings too, so that there are none where the Agent Skills specification
    /// has nothing to say against a file.
    pub strict: bool,
    /// One directory under the root, where not all of the root is meant.
    pub within: Option<PathBuf>,
}
