//! What both Skillyard services agree on: the messages on the wire, and the values, rules and manners of serving that
//! must be the same on both sides of it.
//!
//! Values ([`Skill`], [`Agent`], [`Digest`], …) carry no wire type; [`wire`] turns the one into the other, in both
//! directions, and is the only place that does.

pub mod agent;
pub mod arguments;
pub mod digest;
pub mod name;
pub mod package;
pub mod policy;
pub mod schema;
pub mod service;
pub mod skill;
pub mod view;
pub mod watch;
pub mod wire;

pub use agent::{Agent, PermissionMode};
pub use digest::Digest;
pub use name::SkillName;
pub use package::{PackageFile, PackagePath};
pub use skill::{Class, Skill, Source};
pub use view::View;

/// The generated messages and services, by package.
#[expect(missing_docs, clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
pub mod pb {
    pub mod skill {
        pub mod v1 {
            tonic::include_proto!("skillyard.skill.v1");
        }
    }
    pub mod registry {
        pub mod v1 {
            tonic::include_proto!("skillyard.registry.v1");
        }
    }
    pub mod executor {
        pub mod v1 {
            tonic::include_proto!("skillyard.executor.v1");
        }
    }

    /// All of them with their comments, for reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("descriptor_set");
}
