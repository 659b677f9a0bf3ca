//! One port: connections counted, headers that come in time.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(10);

/// Bytes of a request's head.
const HEAD_BYTES: usize = 16 << 10;

/// Stack of a thread that answers: as much as a command's own thread has.
const STACK: usize = 8 << 20;

/// Serves until interrupted. `ready` hears the address once somebody listens there.
pub fn listen(
    address: SocketAddr,
    connections: usize,
    router: Router,
    ready: impl FnOnce(SocketAddr),
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().thread_stack_size(STACK).enable_all().build()?;
    let served = runtime.block_on(async {
        let listener = TcpListener::bind(address).await?;
        ready(listener.local_addr()?);
        tokio::select! {
            _ = accept(listener, connections, router) => Ok(()),
            interrupted = tokio::signal::ctrl_c() => interrupted,
        }
    });
    // Whoever still waits goes away with the process.
    runtime.shutdown_background();
    served
}

async fn accept(listener: TcpListener, connections: usize, router: Router) {
    let free = Arc::new(Semaphore::new(connections));
    loop {
        let Ok(place) = free.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor is free, for one: others are about to end.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES);
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
            drop(place);
        });
    }
}
