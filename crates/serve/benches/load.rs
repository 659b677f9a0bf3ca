//! Many clients at once, against a server that runs: `cargo bench -p shardwright-serve -- ADDRESS [CLIENTS] [SECONDS]`.
//! Asks `fit` for one case again and again, then for cases that nobody asked for before, and then every built-in recipe
//! on 64xH100 with one degree changed, one after the other. Any status but 200 is an error.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let Some(address) = words.first() else {
        println!("usage: load ADDRESS [CLIENTS] [SECONDS], with `shardwright serve` at ADDRESS");
        return;
    };
    let number = |at: usize, usual: u64| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(usual);
    let (clients, seconds) = (number(1, 100), Duration::from_secs(number(2, 10)));
    let cached = json!({ "recipe": "nam56r", "on": "8xH200", "tp": 2, "levers": "no" });
    rush("the same case", address, clients, seconds, &|_| cached.clone());
    // Sequences in steps of 8 tokens, from where no other run of this began.
    let begin =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64);
    rush("distinct cases", address, clients, seconds, &|number| {
        let seq = 1024 + 8 * ((begin + number) % 100_000);
        json!({ "recipe": "llama3-8b", "on": "8xH200", "tp": 2, "seq": seq, "levers": "no" })
    });
    degrees(address);
}

/// A connection that is kept.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(address: &str) -> Client {
        let stream = TcpStream::connect(address).expect("a server at this address");
        stream.set_nodelay(true).expect("a socket");
        Client(BufReader::new(stream))
    }

    fn ask(&mut self, question: &str, body: &Value) -> (u16, Vec<u8>) {
        let body = body.to_string();
        let length = body.len();
        let head = format!("POST /api/v1/{question} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
        let request = format!("{head}content-length: {length}\r\n\r\n{body}");
        self.0.get_mut().write_all(request.as_bytes()).expect("sent");
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("a line");
            match line.trim() {
                "" => break,
                line if line.starts_with("HTTP/1.1 ") => status = line[9..12].parse().unwrap_or(0),
                line => {
                    if let Some((_, value)) = line.split_once(": ").filter(|(name, _)| *name == "content-length") {
                        length = value.parse().unwrap_or(0);
                    }
                }
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).expect("a body");
        (status, body)
    }
}

/// Everybody asks for so long; how many answers there were, how long they took, and how many were none.
fn rush(what: &str, address: &str, clients: u64, seconds: Duration, body: &(dyn Fn(u64) -> Value + Sync)) {
    let (next, errors) = (AtomicU64::new(0), AtomicU64::new(0));
    let began = Instant::now();
    let mut took: Vec<Duration> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..clients)
            .map(|_| {
                scope.spawn(|| {
                    let (mut client, mut took) = (Client::new(address), Vec::new());
                    while began.elapsed() < seconds {
                        let asked = Instant::now();
                        let (status, _) = client.ask("fit", &body(next.fetch_add(1, Ordering::Relaxed)));
                        took.push(asked.elapsed());
                        errors.fetch_add(u64::from(status != 200), Ordering::Relaxed);
                    }
                    took
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
    });
    let whole = began.elapsed().as_secs_f64();
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "{what}: {clients} clients, {} answers in {whole:.1} s, {:.0} a second, {} errors; half within {:.1} ms, 99% within {:.1} ms",
        took.len(),
        took.len() as f64 / whole,
        errors.load(Ordering::Relaxed),
        at(0.5),
        at(0.99)
    );
}

/// What a change of one degree takes, for every built-in recipe: the page asks these when a control is turned.
fn degrees(address: &str) {
    let mut client = Client::new(address);
    let (_, recipes) = client.ask("recipes", &json!({}));
    let recipes: Value = serde_json::from_slice(&recipes).expect("JSON");
    println!(
        "{:26} {:>9} {:>9} {:>9} {:>9}   ms, the slowest of each",
        "one degree on 64xH100", "check", "fit", "choices", "splits"
    );
    for recipe in recipes["recipes"].as_array().into_iter().flatten() {
        let name = recipe["name"].as_str().unwrap_or_default();
        let mut slowest = [0f64; 4];
        for (axis, degree) in
            [("tp", 2), ("tp", 8), ("pp", 4), ("pp", 8), ("ep", 8), ("cp", 2), ("mbs", 2), ("zero", 1)]
        {
            for (at, question) in ["check", "fit", "choices", "splits"].into_iter().enumerate() {
                let mut body = json!({ "recipe": name, axis: degree });
                match question {
                    "splits" => body["world"] = json!(64),
                    _ => body["on"] = json!("64xH100"),
                }
                if question == "fit" {
                    body["levers"] = json!("no");
                }
                let asked = Instant::now();
                let (status, _) = client.ask(question, &body);
                let took = asked.elapsed().as_secs_f64() * 1e3;
                if took > slowest[at] && status != 422 {
                    slowest[at] = took;
                }
            }
        }
        let [check, fit, choices, splits] = slowest;
        println!("{name:26} {check:9.1} {fit:9.1} {choices:9.1} {splits:9.1}");
    }
}
