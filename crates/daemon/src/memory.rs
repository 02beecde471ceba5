//! How much memory this process may still take: the host's estimate, cut to what its control group
//! leaves. What it deliberately does not do: reserve anything; the answer is true for the moment
//! it was read.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::units::ByteSize;

/// Why the available memory is not known.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The file could not be read, as outside Linux.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file does not say how much memory is available.
    #[error("{} has no line `MemAvailable`", path.display())]
    NoEstimate {
        /// The file.
        path: PathBuf,
    },
}

/// The memory that can be taken without swapping: `MemAvailable`, and not more than any control
/// group around this process (version 1 or 2) leaves below its limit. Page cache that the group
/// can drop counts as free.
///
/// # Errors
/// [`MemoryError`] when the host does not tell, as outside Linux.
pub fn available_memory() -> Result<ByteSize, MemoryError> {
    available_in(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
}

fn available_in(proc: &Path, cgroup: &Path) -> Result<ByteSize, MemoryError> {
    let path = proc.join("meminfo");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(MemoryError::Read { path, source }),
    };
    let host = keyed(&text, "MemAvailable:").and_then(|kib| kib.checked_mul(1 << 10));
    let Some(host) = host else {
        return Err(MemoryError::NoEstimate { path });
    };
    let groups = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    let left = groups.lines().filter_map(|line| left_in_groups(line, cgroup)).min();
    Ok(ByteSize::bytes(left.map_or(host, |left| left.min(host))))
}

/// The files of one version of the interface.
struct Files {
    limit: &'static str,
    used: &'static str,
    droppable: &'static str,
}

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    droppable: "total_inactive_file",
};
const V2: Files = Files { limit: "memory.max", used: "memory.current", droppable: "inactive_file" };

/// The least that any group on the path of one line of `/proc/self/cgroup` leaves; `None` without
/// a limit. Inside a container the path may name groups that are not mounted; its ancestors are.
fn left_in_groups(line: &str, cgroup: &Path) -> Option<u64> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (root, files) = match controllers {
        "" => (cgroup.to_owned(), V2),
        _ if controllers.split(',').any(|c| c == "memory") => (cgroup.join("memory"), V1),
        _ => return None,
    };
    let group = root.join(path.trim_start_matches('/'));
    let inside = group.ancestors().take_while(|dir| dir.starts_with(&root));
    inside.filter_map(|dir| left_in_group(dir, &files)).min()
}

fn left_in_group(dir: &Path, files: &Files) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit = number(files.limit)?;
    let used = number(files.used)?;
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let droppable = keyed(&stat, files.droppable).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(droppable)))
}

/// The number after `key` in a file of "key number" lines.
fn keyed(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(key))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{ByteSize, MemoryError, available_in};

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().expect("has a parent")).expect("make folders");
        fs::write(path, text).expect("write");
    }

    fn available(files: &[(&str, &str)]) -> Result<u64, MemoryError> {
        let root = tempfile::tempdir().expect("temporary folder");
        for (name, text) in files {
            write(root.path(), name, text);
        }
        available_in(&root.path().join("proc"), &root.path().join("cg")).map(ByteSize::get)
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 64 kB\nMemAvailable:   40 kB\n");

    #[test]
    fn without_a_group_the_host_decides() {
        assert_eq!(available(&[MEMINFO]).expect("readable"), 40 << 10);
        let unlimited = [MEMINFO, ("proc/self/cgroup", "0::/a\n"), ("cg/a/memory.max", "max\n")];
        assert_eq!(available(&unlimited).expect("readable"), 40 << 10);
    }

    #[test]
    fn the_tightest_group_on_the_path_decides_and_cache_counts_as_free() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("cg/a/b/memory.max", "30000\n"),
            ("cg/a/b/memory.current", "1000\n"),
            ("cg/a/memory.max", "20000\n"),
            ("cg/a/memory.current", "9000\n"),
            ("cg/a/memory.stat", "anon 4000\ninactive_file 5000\n"),
        ];
        assert_eq!(available(&files).expect("readable"), 16_000);
    }

    #[test]
    fn version_one_groups_are_read_too() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "5:cpu:/x\n4:memory:/x\n"),
            ("cg/memory/x/memory.limit_in_bytes", "10000\n"),
            ("cg/memory/x/memory.usage_in_bytes", "4000\n"),
        ];
        assert_eq!(available(&files).expect("readable"), 6_000);
    }

    #[test]
    fn a_host_that_does_not_tell_is_an_error() {
        assert!(matches!(available(&[]), Err(MemoryError::Read { .. })));
        let silent = available(&[("proc/meminfo", "MemTotal: 64 kB\n")]);
        assert!(matches!(silent, Err(MemoryError::NoEstimate { .. })));
    }
}
