//! The exit codes of every program, and which error means which.

use crate::bind::BindError;
use crate::config::ConfigError;

/// All went well.
pub const OK: u8 = 0;
/// Something failed that was configured well.
pub const FAILURE: u8 = 1;
/// The command line or the configuration is wrong (`EX_USAGE` of BSD's sysexits).
pub const USAGE: u8 = 64;

/// The exit code for an error: [`USAGE`] if a wrong configuration is anywhere in its chain,
/// otherwise [`FAILURE`]. A port in use is a failure: the same configuration works once it is
/// free.
#[must_use]
pub fn code_of(error: &anyhow::Error) -> u8 {
    let usage = error.chain().any(|cause| {
        cause.is::<ConfigError>()
            || matches!(cause.downcast_ref::<BindError>(), Some(BindError::Exposed { .. }))
    });
    if usage { USAGE } else { FAILURE }
}

#[cfg(test)]
mod tests {
    use super::{FAILURE, USAGE, code_of};
    use crate::config::ConfigError;

    #[test]
    fn a_wrong_setting_ends_with_64_however_deep_it_lies() {
        let wrong = ConfigError::invalid("pool.bytes", "too small", "raise it");
        let wrapped = anyhow::Error::from(wrong).context("cannot start the memory node");
        assert_eq!(code_of(&wrapped), USAGE);
        assert_eq!(code_of(&anyhow::anyhow!("the disk is full")), FAILURE);
    }
}
