//! Every layout of a model on a cluster, priced: the best one, the frontier, and why the others
//! lost.
//!
//! Legality comes from `layout`, memory from `memory`, time from `cost`; nothing here knows a rule,
//! a byte or a second of its own. It prints nothing and reads no file.

mod answer;
mod best;
mod clock;
mod count;
mod cuts;
mod placement;
mod point;
mod price;
mod question;
mod rules;
mod search;
mod shape;
mod simplicity;
mod space;

pub use answer::{Answer, Choice, ModeAnswer, Neighbour, Refused, Refuted, WORTH, answer, confirm};
pub use best::{Best, FRONTIER_REACH, HEADROOM_STEPS, Simulated};
pub use count::{Counts, count};
pub use cuts::{Cut, Evenness, Weights, balanced, cuts};
pub use placement::placement;
pub use point::{Key, Offload, Order, Point};
pub use price::{Candidate, Interest, MemoryLine, Pricer, Tally};
pub use question::{OffloadChoice, Question, Reach, TOKENS_PER_STEP, usual_batch};
pub use rules::{Mask, Rules};
pub use search::{Effort, Found, Watch, lay_out, pricers, search};
pub use shape::{Shape, Stage};
pub use space::{Batch, MOST_TOKENS, ModeSpace, Space};
