//! A panic is a crash: it is logged with its place and the process aborts, because recovery from
//! a crash is the path that is tested, and recovery from a half-dead process is not.
//! What it deliberately does not do: catch, restart, or clean up.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write;
use std::panic::PanicHookInfo;

/// Makes every panic of the process log and abort. For binaries: a test harness needs its own
/// hook.
pub fn abort_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        report(info);
        std::process::abort();
    }));
}

fn report(info: &PanicHookInfo<'_>) {
    let message = info.payload_as_str().unwrap_or("a panic without text");
    let location = info.location().map_or_else(|| "unknown".to_owned(), ToString::to_string);
    let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
    let backtrace = Backtrace::capture();
    let backtrace = match backtrace.status() {
        BacktraceStatus::Captured => backtrace.to_string(),
        _ => String::new(),
    };
    if tracing::dispatcher::has_been_set() {
        tracing::error!(message, location, thread, backtrace, "panic: the process aborts");
        return;
    }
    // Before telemetry exists standard error is all there is; if that fails nobody can be told.
    let line = format!("panic at {location} in thread {thread}: {message}\n{backtrace}\n");
    drop(std::io::stderr().write_all(line.as_bytes()));
}
