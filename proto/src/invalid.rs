//! A message that parsed as protobuf but breaks a rule of ours, and the one status for it.

use tonic::Status;

/// A field of a message is missing or out of its range; nothing was done with the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field {field}: {reason}")]
pub struct InvalidMessage {
    /// Path from the message's root, as in `plan.homes[2].nodes[0].node`.
    pub field: String,
    /// What is wrong and what is allowed.
    pub reason: String,
}

impl InvalidMessage {
    /// One field of the message at hand.
    #[must_use]
    pub fn new(field: &str, reason: impl Into<String>) -> Self {
        Self { field: field.to_owned(), reason: reason.into() }
    }

    /// The same fault, seen from the message that holds this one in `field`.
    #[must_use]
    pub fn within(mut self, field: &str) -> Self {
        self.field = format!("{field}.{}", self.field);
        self
    }

    /// The same fault, seen from the message that holds this one at `index` of `field`.
    #[must_use]
    pub fn within_at(mut self, field: &str, index: usize) -> Self {
        self.field = format!("{field}[{index}].{}", self.field);
        self
    }
}

impl From<InvalidMessage> for Status {
    /// The sender must change the message; sending it again is useless.
    fn from(invalid: InvalidMessage) -> Self {
        Self::invalid_argument(invalid.to_string())
    }
}
