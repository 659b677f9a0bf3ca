//! How far the host is ahead of the device. It decides when a block that another stream used can be
//! taken again, and nothing else: the device is done with it only once it got there.

use std::collections::VecDeque;

/// How fast a host and its device go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Seconds the host needs from one allocation to the next.
    pub host: f64,
    /// Floating-point operations a second of the device's products.
    pub flops: f64,
    /// Bytes a second its other kernels make.
    pub bytes: f64,
    /// Allocations the host may be ahead, before the driver makes it wait.
    pub queue: usize,
}

/// Two clocks, in seconds since the replay began.
#[derive(Debug)]
pub(super) struct Clock {
    pace: Pace,
    host: f64,
    device: f64,
    /// When the device is done with each of the last allocations' kernels.
    queued: VecDeque<f64>,
}

/// Ticks of a clock a second.
const TICKS: f64 = 1e9;

impl Clock {
    pub fn new(pace: Pace) -> Clock {
        Clock { pace, host: 0.0, device: 0.0, queued: VecDeque::new() }
    }

    /// A tensor is allocated and the kernel that fills it is started; returns the host's time.
    pub fn allocate(&mut self, bytes: u64) -> u64 {
        self.host += self.pace.host;
        if self.queued.len() >= self.pace.queue {
            let oldest = self.queued.pop_front().unwrap_or(0.0);
            self.host = self.host.max(oldest);
        }
        self.device = self.device.max(self.host) + bytes as f64 / self.pace.bytes;
        self.queued.push_back(self.device);
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { host: 1e-6, flops: 1e12, bytes: 1e12, queue: 4 };

    #[test]
    fn a_slow_host_is_never_ahead() {
        let mut clock = Clock::new(PACE);
        for _ in 0..10 {
            let now = clock.allocate(1000);
            assert!(clock.done() <= now + 1);
        }
    }

    #[test]
    fn a_fast_host_is_ahead_by_the_queue_at_most() {
        let mut clock = Clock::new(PACE);
        for _ in 0..100 {
            let now = clock.allocate(10_000_000);
            assert!(clock.done() <= now + 50_000);
        }
        assert!(clock.done() > clock.allocate(0) + 20_000);
        clock.synchronize();
        assert!(clock.allocate(0) >= clock.done() - 1000);
    }
}
