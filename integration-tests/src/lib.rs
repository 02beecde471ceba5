//! What the tests of whole processes share: programs as child processes, clusters of them, an
//! HTTP client that can break off, and pages of metrics.
//! What it deliberately does not do: link any crate of the product. A test sees what a user sees.

pub mod cluster;
pub mod http;
pub mod metrics;
pub mod model;
pub mod program;

pub use cluster::{Cluster, Layout, Setting};
pub use http::{Answer, Client, Events};
pub use metrics::Page;
pub use program::{Ended, Program};
