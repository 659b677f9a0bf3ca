//! How far the host is ahead of the device. It decides when a block that another stream used can be
//! taken again, and nothing else: the device is done with it only once it got there.

use std::collections::VecDeque;

/// How fast a host and its device go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Seconds the host needs from one launch to the next.
    pub host: f64,
    /// Launches for each allocation in forward, and in backward.
    pub launches: [f64; 2],
    /// Floating-point operations a second of the device's products.
    pub flops: f64,
    /// Bytes a second its other kernels make.
    pub bytes: f64,
    /// Launches the host may be ahead, before the driver makes it wait.
    pub queue: f64,
}

/// Two clocks, in seconds since the replay began.
#[derive(Debug)]
pub(super) struct Clock {
    pace: Pace,
    host: f64,
    device: f64,
    /// When the device is done with each of the last allocations' kernels, and how many they are.
    queued: VecDeque<(f64, f64)>,
    /// Launches in the queue.
    waiting: f64,
}

/// Ticks of a clock a second.
const TICKS: f64 = 1e9;

impl Clock {
    pub fn new(pace: Pace) -> Clock {
        Clock { pace, host: 0.0, device: 0.0, queued: VecDeque::new(), waiting: 0.0 }
    }

    /// A tensor is allocated and the kernels that fill it are started; returns the host's time.
    pub fn allocate(&mut self, bytes: u64, is_backward: bool) -> u64 {
        let launches = self.pace.launches[usize::from(is_backward)];
        self.host += launches * self.pace.host;
        self.waiting += launches;
        while let Some(&(done, launches)) = self.queued.front().filter(|_| self.waiting > self.pace.queue) {
            self.host = self.host.max(done);
            self.waiting -= launches;
            self.queued.pop_front();
        }
        self.device = self.device.max(self.host) + bytes as f64 / self.pace.bytes;
        self.queued.push_back((self.device, launches));
        (self.host * TICKS) as u64
    }

    /// A product is started.
    pub fn work(&mut self, flops: f64) {
        self.device = self.device.max(self.host) + flops / self.pace.flops;
    }

    /// When the device is done with all it was given.
    pub fn done(&self) -> u64 {
        (self.device * TICKS) as u64
    }

    /// The host waits for the device.
    pub fn synchronize(&mut self) {
        self.host = self.host.max(self.device);
        self.queued.clear();
        self.waiting = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { host: 1e-6, launches: [1.0, 2.0], flops: 1e12, bytes: 1e12, queue: 4.0 };

    #[test]
    fn a_slow_host_is_never_ahead() {
        let mut clock = Clock::new(PACE);
        for _ in 0..10 {
            let now = clock.allocate(1000, false);
            assert!(clock.done() <= now + 1);
        }
    }

    #[test]
    fn a_fast_host_is_ahead_by_the_queue_at_most() {
        let mut clock = Clock::new(PACE);
        for _ in 0..100 {
            let now = clock.allocate(10_000_000, false);
            assert!(clock.done() <= now + 50_000);
        }
        assert!(clock.done() > clock.allocate(0, false) + 20_000);
        clock.synchronize();
        assert!(clock.allocate(0, false) >= clock.done() - 1000);
    }
}
