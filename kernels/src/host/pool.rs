//! Hot path. The threads of the host device: a launch is cut into tiles that any thread may take.
//! Several threads may submit at once. What a tile computes never depends on who takes it; no
//! tile waits for another.

use std::{
    collections::VecDeque,
    fmt,
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle, Thread},
};

use parking_lot::{Condvar, Mutex};

use super::OpenError;

/// Most compute threads: beyond this a launch is too short to share out.
pub const THREADS_MAX: usize = 256;

/// Spins of an idle thread before it sleeps: about 20 microseconds where a pause takes 140
/// cycles, a few where it is cheap. Long spinning is ruinous on shared cores.
const SPINS_MAX: usize = 400;

/// Threads that wait for launches.
pub(super) struct Pool {
    board: Arc<Board>,
    workers: Vec<JoinHandle<()>>,
}

/// What submitters and workers both see.
#[derive(Default)]
struct Board {
    posted: Mutex<Posted>,
    /// Notified when a launch is posted while somebody sleeps, and at the end.
    wake: Condvar,
    /// Counts launches, so that a spinning worker sees a new one without the lock.
    launches: AtomicUsize,
    /// Set once, when the pool is dropped.
    closing: AtomicBool,
}

#[derive(Default)]
struct Posted {
    /// One entry per submitting thread at most, so as many as there are roles.
    launches: VecDeque<LaunchRef>,
    /// Workers in `wake`.
    sleeping: usize,
}

/// A launch on its submitter's stack.
struct Launch<'a> {
    task: &'a (dyn Fn(usize) + Sync),
    tiles: usize,
    /// The next tile that nobody has taken.
    next: AtomicUsize,
    /// Workers that hold a reference; they join under the lock while the launch is posted.
    workers: AtomicUsize,
    /// A tile panicked in a worker.
    poisoned: AtomicBool,
    submitter: Thread,
}

/// A launch whose submitter stays until nobody uses it.
#[derive(Clone, Copy, PartialEq)]
struct LaunchRef(NonNull<Launch<'static>>);

// SAFETY: what it points to is Sync, and Pool::run keeps it alive until all workers have left.
unsafe impl Send for LaunchRef {}

impl Launch<'_> {
    /// Takes tiles until none is left.
    fn work(&self) {
        loop {
            let tile = self.next.fetch_add(1, Ordering::Relaxed);
            if tile >= self.tiles {
                return;
            }
            (self.task)(tile);
        }
    }
}

impl Pool {
    pub(super) fn start(threads: NonZeroUsize) -> Result<Self, OpenError> {
        let threads = threads.get();
        if threads > THREADS_MAX {
            return Err(OpenError::Threads { threads, max: THREADS_MAX });
        }
        let mut pool = Self { board: Arc::default(), workers: Vec::new() };
        for index in 1..threads {
            let board = Arc::clone(&pool.board);
            let worker = thread::Builder::new()
                .name(format!("kernel-{index}"))
                .spawn(move || board.serve())
                .map_err(|source| OpenError::Spawn { index, source })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    pub(super) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task` once for every tile below `tiles`, on this and other threads, and returns
    /// when all are done.
    pub(super) fn run(&self, tiles: usize, task: &(dyn Fn(usize) + Sync)) {
        if tiles <= 1 || self.workers.is_empty() {
            (0..tiles).for_each(task);
            return;
        }
        let launch = Launch {
            task,
            tiles,
            next: AtomicUsize::new(0),
            workers: AtomicUsize::new(0),
            poisoned: AtomicBool::new(false),
            submitter: thread::current(),
        };
        let reference = LaunchRef(NonNull::from(&launch).cast());
        // Posted until the guard is dropped, also when a tile panics here.
        let posted = Posting { board: &self.board, launch: &launch, reference };
        self.board.post(reference);
        launch.work();
        drop(posted);
        assert!(!launch.poisoned.load(Ordering::Relaxed), "a tile of a kernel panicked");
    }
}

/// A launch on the board. Dropping it takes the launch off and waits until no worker uses it.
struct Posting<'a> {
    board: &'a Board,
    launch: &'a Launch<'a>,
    reference: LaunchRef,
}

impl Drop for Posting<'_> {
    fn drop(&mut self) {
        // No tile may start after a panic of ours; harmless otherwise, all are taken.
        self.launch.next.fetch_max(self.launch.tiles, Ordering::Relaxed);
        self.board.posted.lock().launches.retain(|posted| *posted != self.reference);
        let mut spins = 0;
        while self.launch.workers.load(Ordering::Acquire) > 0 {
            if spins < SPINS_MAX {
                spins += 1;
                std::hint::spin_loop();
            } else {
                thread::park();
            }
        }
    }
}

impl Board {
    fn post(&self, launch: LaunchRef) {
        let mut posted = self.posted.lock();
        posted.launches.push_back(launch);
        self.launches.fetch_add(1, Ordering::Release);
        if posted.sleeping > 0 {
            self.wake.notify_all();
        }
    }

    /// A worker's life.
    fn serve(&self) {
        loop {
            let seen = self.launches.load(Ordering::Acquire);
            if self.closing.load(Ordering::Acquire) {
                return;
            }
            if let Some(launch) = self.join() {
                self.help(launch);
            } else {
                self.rest(seen);
            }
        }
    }

    /// The oldest launch that still has tiles, with this worker counted in.
    fn join(&self) -> Option<LaunchRef> {
        let posted = self.posted.lock();
        for &reference in &posted.launches {
            // SAFETY: it is posted and the lock is held, so its submitter has not left.
            let launch = unsafe { reference.0.as_ref() };
            if launch.next.load(Ordering::Relaxed) < launch.tiles {
                launch.workers.fetch_add(1, Ordering::Relaxed);
                return Some(reference);
            }
        }
        None
    }

    fn help(&self, reference: LaunchRef) {
        // SAFETY: this worker is counted in, so the submitter waits in Posting::drop.
        let launch = unsafe { reference.0.as_ref() };
        let submitter = launch.submitter.clone();
        if catch_unwind(AssertUnwindSafe(|| launch.work())).is_err() {
            launch.poisoned.store(true, Ordering::Relaxed);
        }
        // The last use of `launch`: afterwards it may be gone.
        if launch.workers.fetch_sub(1, Ordering::Release) == 1 {
            submitter.unpark();
        }
    }

    /// Spins a little, then sleeps, until there was another launch than those `seen`.
    fn rest(&self, seen: usize) {
        for _ in 0..SPINS_MAX {
            if self.launches.load(Ordering::Acquire) != seen || self.closing.load(Ordering::Relaxed)
            {
                return;
            }
            std::hint::spin_loop();
        }
        let mut posted = self.posted.lock();
        while self.launches.load(Ordering::Acquire) == seen && !self.closing.load(Ordering::Acquire)
        {
            posted.sleeping += 1;
            self.wake.wait(&mut posted);
            posted.sleeping -= 1;
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let _posted = self.board.posted.lock();
            self.board.closing.store(true, Ordering::Release);
        }
        self.board.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tiles, so there is nothing to pass on.
            drop(worker.join());
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

/// A slice that tiles write disjoint parts of.
#[derive(Clone, Copy)]
pub(super) struct Shared<T> {
    first: NonNull<T>,
    len: usize,
}

// SAFETY: whoever takes a part promises that no other tile has it.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    /// The caller keeps `slice` borrowed while tiles run.
    pub(super) fn new(slice: &mut [T]) -> Self {
        let len = slice.len();
        Self { first: NonNull::from(slice).cast(), len }
    }

    /// A part of the slice.
    ///
    /// # Safety
    /// The slice is still borrowed for this use and no other tile touches the part.
    pub(super) unsafe fn part<'a>(self, at: usize, len: usize) -> &'a mut [T] {
        let end = at.checked_add(len).expect("a part's end is an index");
        assert!(end <= self.len, "part {at}..{end} of a slice of {}", self.len);
        // SAFETY: at <= len of the allocation.
        let first = unsafe { self.first.add(at) };
        // SAFETY: in bounds as asserted; exclusive and alive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize) -> Pool {
        Pool::start(NonZeroUsize::new(threads).unwrap()).unwrap()
    }

    #[test]
    fn every_tile_runs_once_with_any_number_of_threads_and_submitters() {
        for threads in [1, 2, 5] {
            let pool = pool(threads);
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for tiles in (0..200).chain([5000]) {
                            let mut counts = vec![0_u32; tiles];
                            let shared = Shared::new(&mut counts);
                            pool.run(tiles, &|tile| {
                                // SAFETY: each tile takes its own element.
                                let own = unsafe { shared.part(tile, 1) };
                                own[0] += 1;
                            });
                            assert!(counts.iter().all(|&count| count == 1));
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn a_panicking_tile_stops_its_launch_and_leaves_the_pool_usable() {
        let pool = pool(3);
        for bad in [0, 57, 99] {
            let run = catch_unwind(AssertUnwindSafe(|| {
                pool.run(100, &|tile| assert!(tile != bad, "tile {tile}"));
            }));
            assert!(run.is_err());
        }
        let count = AtomicUsize::new(0);
        pool.run(100, &|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 100);
    }

    #[test]
    fn too_many_threads_are_refused() {
        let refused = Pool::start(NonZeroUsize::new(100_000).unwrap());
        assert!(matches!(refused, Err(OpenError::Threads { .. })));
    }
}
