//! What loading takes: the packed weights and little else. A process of its own, because the
//! largest resident memory that the kernel remembers is that of all tests together.
#[expect(dead_code, reason = "other tests use more of it")]
#[path = "model/host.rs"]
#[cfg(test)]
mod host;
#[expect(dead_code, reason = "no file is written here")]
#[path = "model/writer.rs"]
#[cfg(test)]
mod writer;

#[cfg(test)]
mod tests {
    use super::host::{device, load, real_file};

    /// A line of /proc/self/status in bytes, such as the resident memory now or at most.
    fn status(line: &str) -> Option<u64> {
        let text = std::fs::read_to_string("/proc/self/status").ok()?;
        let value = text.lines().find_map(|found| found.strip_prefix(line))?;
        Some(value.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
    }

    #[test]
    fn loading_takes_the_packed_weights_and_no_second_copy() {
        let Some(checkpoint) = real_file() else { return };
        let Some(before) = status("VmRSS:") else {
            println!("SKIPPED no /proc/self/status");
            return;
        };
        let file: u64 = checkpoint.tensors().iter().map(|tensor| tensor.bytes).sum();
        let model = load(&checkpoint, &device(2, None));
        let (now, peak) = (status("VmRSS:").unwrap(), status("VmHWM:").unwrap());
        println!(
            "file {file} bytes; resident memory grew by {} to load, by {} at most",
            now - before,
            peak - before
        );
        // Beside the packed weights there is one tensor of a layer, on its pages in the file.
        assert!(peak - now < file / 10 + (8 << 20), "{peak} {now} {file}");
        assert!(now - before < file * 13 / 10 + (32 << 20), "{now} {before} {file}");
        drop(model);
    }
}
