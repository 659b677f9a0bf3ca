//! Frames as bytes, cut into messages. A message is small enough for every transport to send eagerly:
//! once it can be seen all of it is here, and receiving it cannot block on a sender that has stopped.
//! Numbers are little-endian.

use crate::element::{Dtype, Payload};
use diag::{Blame, Finding};
use std::sync::Arc;

/// Bytes of one message. Open MPI's shared memory sends up to 4096 eagerly, its own header included
/// (`ompi_info --param btl vader`), which is the least of its transports.
pub const MESSAGE: usize = 3584;

/// What a frame is part of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A collective: the group, and which of its calls.
    Round(Vec<usize>, u64),
    /// A point-to-point message under a tag.
    Message(u64),
    /// The sender failed; its [`Last`] follows.
    End,
    /// The sender has finished.
    Left,
    /// The sender is the one that reports to the user.
    Speaks,
}

/// A received frame.
pub struct Frame {
    /// The sender's call in words, to compare with the receiver's.
    pub words: String,
    pub payload: Payload,
}

/// Cuts a frame into messages; the first begins with the length of the frame.
pub fn messages(frame: &[u8]) -> Vec<Vec<u8>> {
    let mut whole = (frame.len() as u64).to_le_bytes().to_vec();
    whole.extend(frame);
    whole.chunks(MESSAGE).map(<[u8]>::to_vec).collect()
}

/// A frame of which only some messages have come. Messages of one sender come in order.
#[derive(Default)]
pub struct Partial {
    bytes: Vec<u8>,
}

impl Partial {
    /// Adds a message; gives the frame when it is whole.
    pub fn add(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        self.bytes.extend(message);
        let (len, frame) = self.bytes.split_first_chunk::<8>()?;
        if (frame.len() as u64) < u64::from_le_bytes(*len) {
            return None;
        }
        let frame = frame.to_vec();
        self.bytes.clear();
        Some(frame)
    }
}

/// A frame as bytes: the key, the words, the format, the elements.
pub fn encode(key: &Key, words: &str, payload: &Payload) -> Vec<u8> {
    let numbers: Vec<u64> = match key {
        Key::Round(ranks, round) => {
            [0, *round, ranks.len() as u64].into_iter().chain(ranks.iter().map(|r| *r as u64)).collect()
        }
        Key::Message(tag) => vec![1, *tag],
        Key::End => vec![2],
        Key::Left => vec![3],
        Key::Speaks => vec![4],
    };
    let mut out: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    text(&mut out, words);
    match payload {
        Payload::F32(v) => {
            out.push(Dtype::F32 as u8);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        Payload::F64(v) => {
            out.push(Dtype::F64 as u8);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        Payload::U64(v) => {
            out.push(Dtype::U64 as u8);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
    }
    out
}

/// Inverse of [`encode`]; `None` for bytes that it did not write.
pub fn decode(bytes: &[u8]) -> Option<(Key, Frame)> {
    let mut rest = bytes;
    let key = match number(&mut rest)? {
        0 => {
            let (round, len) = (number(&mut rest)?, number(&mut rest)?);
            let ranks = (0..len).map(|_| number(&mut rest).map(|r| r as usize)).collect::<Option<Vec<_>>>()?;
            Key::Round(ranks, round)
        }
        1 => Key::Message(number(&mut rest)?),
        2 => Key::End,
        3 => Key::Left,
        4 => Key::Speaks,
        _ => return None,
    };
    let words = word(&mut rest)?;
    let (dtype, data) = rest.split_first()?;
    let payload = match *dtype {
        d if d == Dtype::F32 as u8 => {
            Payload::F32(Arc::new(data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
        }
        d if d == Dtype::F64 as u8 => {
            Payload::F64(Arc::new(data.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect()))
        }
        d if d == Dtype::U64 as u8 => {
            Payload::U64(Arc::new(data.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect()))
        }
        _ => return None,
    };
    Some((key, Frame { words, payload }))
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let (first, others) = rest.split_first_chunk::<8>()?;
    *rest = others;
    Some(u64::from_le_bytes(*first))
}

fn text(out: &mut Vec<u8>, words: &str) {
    out.extend((words.len() as u64).to_le_bytes());
    out.extend(words.as_bytes());
}

fn word(rest: &mut &[u8]) -> Option<String> {
    let len = usize::try_from(number(rest)?).ok()?;
    let (words, others) = rest.split_at_checked(len)?;
    *rest = others;
    String::from_utf8(words.to_vec()).ok()
}

/// How the run ended on one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// Why it ended there.
    pub findings: Vec<Finding>,
    /// The rank that found it first; the others were told.
    pub by: usize,
}

/// Where a rank was when the run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Last {
    pub ending: Ending,
    /// The call it made last, in words.
    pub doing: Option<String>,
    /// The rank it was waiting for in that call.
    pub waits: Option<usize>,
}

const BLAMES: [Blame; 6] = [Blame::Recipe, Blame::Layout, Blame::Engine, Blame::Environment, Blame::Usage, Blame::Bug];

impl Last {
    /// As the bytes of a payload. Findings lose their spans, which point into texts that others do not
    /// have.
    pub fn encode(&self) -> Payload {
        let mut out = Vec::new();
        out.extend((self.ending.by as u64).to_le_bytes());
        out.extend(self.waits.map_or(0, |rank| rank as u64 + 1).to_le_bytes());
        text(&mut out, self.doing.as_deref().unwrap_or(""));
        for finding in &self.ending.findings {
            let blame = BLAMES.iter().position(|b| *b == finding.blame).unwrap_or(BLAMES.len() - 1);
            out.extend((blame as u64).to_le_bytes());
            let hint = finding.hint.as_deref().unwrap_or("");
            [finding.rule, &finding.object, &finding.message, hint].iter().for_each(|t| text(&mut out, t));
        }
        Payload::U64(Arc::new(out.into_iter().map(u64::from).collect()))
    }

    /// Inverse of [`Last::encode`].
    pub fn decode(payload: &Payload) -> Option<Last> {
        let Payload::U64(bytes) = payload else { return None };
        let bytes: Vec<u8> = bytes.iter().map(|b| *b as u8).collect();
        let mut rest = &bytes[..];
        let (by, waits) = (number(&mut rest)? as usize, (number(&mut rest)? as usize).checked_sub(1));
        let doing = word(&mut rest).map(|w| (!w.is_empty()).then_some(w))?;
        let mut findings = Vec::new();
        while !rest.is_empty() {
            let blame = *BLAMES.get(number(&mut rest)? as usize)?;
            // Rules are static strings; one string leaks for each rank, when the run is over.
            let rule: &'static str = Box::leak(word(&mut rest)?.into_boxed_str());
            let mut finding = Finding::error(rule, blame, word(&mut rest)?, word(&mut rest)?);
            finding.hint = word(&mut rest).filter(|h| !h.is_empty());
            findings.push(finding);
        }
        Some(Last { ending: Ending { findings, by }, doing, waits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_read_back_in_messages() {
        let payload = Payload::F64(Arc::new((0..2000).map(f64::from).collect()));
        for key in [Key::Round(vec![0, 3], 7), Key::Message(9), Key::End, Key::Left, Key::Speaks] {
            let parts = messages(&encode(&key, "all-reduce", &payload));
            assert!(parts.len() > 4 && parts.iter().all(|p| p.len() <= MESSAGE));
            let mut partial = Partial::default();
            let (last, first) = parts.split_last().unwrap();
            assert!(first.iter().all(|p| partial.add(p).is_none()));
            let (again, frame) = decode(&partial.add(last).unwrap()).unwrap();
            assert_eq!((again, frame.words.as_str()), (key, "all-reduce"));
            assert!(matches!((&frame.payload, &payload), (Payload::F64(a), Payload::F64(b)) if a == b));
        }
    }

    #[test]
    fn what_is_no_frame_is_none() {
        let whole = encode(&Key::Round(vec![0, 1], 1), "barrier", &Payload::F32(Arc::new(vec![1.0])));
        assert!((0..whole.len() - 4).all(|cut| decode(&whole[..cut]).is_none()));
        assert!(decode(&[9; 64]).is_none());
        assert!(decode(&[1; 7]).is_none());
    }

    #[test]
    fn endings_read_back() {
        let finding = Finding::error("comm/late", Blame::Environment, "tp", "rank 1 · naïve").hint("wait");
        let ending = Ending { findings: vec![finding.clone(), Finding { hint: None, ..finding }], by: 3 };
        let last = Last { ending, doing: Some("a barrier".to_string()), waits: Some(2) };
        assert_eq!(Last::decode(&last.encode()), Some(last));
    }
}
