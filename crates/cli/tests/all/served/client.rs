//! A server of this test's own, and a client of a few lines.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server that ends with the test.
pub struct Served {
    child: Child,
    pub address: String,
}

impl Served {
    /// Starts one with these words besides.
    pub fn start(words: &[&str]) -> Served {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardwright"));
        let mut child =
            command.args(["serve", "--port", "0"]).args(words).stdout(Stdio::piped()).spawn().expect("the binary runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("an address");
        let address = line.trim().trim_start_matches("http://").trim_end_matches('/').to_string();
        assert!(address.starts_with("127.0.0.1:"), "{line:?}");
        Served { child, address }
    }

    /// Sends a request and leaves the answer to be read.
    pub fn send(&self, head: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a socket");
        let length = body.len();
        let text = format!("{head}\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(text.as_bytes()).expect("sent");
        stream
    }

    /// Status and text of an answer.
    pub fn text(&self, head: &str, body: &str) -> (u16, String) {
        let mut text = String::new();
        self.send(head, body).read_to_string(&mut text).expect("an answer");
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let body = text.split_once("\r\n\r\n").expect("a body").1.to_string();
        (status, body)
    }

    /// Status and text of an answer to a question.
    pub fn ask(&self, question: &str, body: &Value) -> (u16, String) {
        let head = format!("POST /api/v1/{question} HTTP/1.1\r\ncontent-type: application/json");
        self.text(&head, &body.to_string())
    }

    /// The same, read.
    pub fn json(&self, question: &str, body: &Value) -> (u16, Value) {
        let (status, text) = self.ask(question, body);
        (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{question} {body}: {error}: {text}")))
    }

    /// Bytes of memory it holds.
    #[cfg(target_os = "linux")]
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("its status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") * 1024
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
