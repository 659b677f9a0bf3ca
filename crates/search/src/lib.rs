//! Every layout of a model on a cluster, priced: the best one, the frontier, and why the others
//! lost.
//!
//! Legality comes from `layout`, memory from `memory`, time from `cost`; nothing here knows a rule,
//! a byte or a second of its own. It prints nothing and reads no file.

mod answer;
mod besides;
mod best;
mod clock;
mod count;
mod cuts;
mod nearest;
mod placement;
mod point;
mod pools;
mod predicted;
mod price;
mod question;
mod rules;
mod search;
mod shape;
mod simplicity;
mod space;
mod trials;
mod verdicts;

pub use answer::{Answer, Choice, Left, ModeAnswer, Neighbour, Refused, Replays, answer, decides};
pub use besides::{Besides, besides};
pub use best::{Best, FRONTIER_REACH, Scope, Simulated};
pub use count::Counts;
pub use cuts::{Evenness, balanced};
pub use nearest::{Nearest, nearest};
pub use point::{Key, Offload, Order, Point};
pub use pools::{PooledAnswer, PooledChoice, over_pools};
pub use price::{MemoryLine, Pricer, Tally};
pub use question::{Offered, OffloadChoice, Question, Reach, usual_batch_of};
pub use search::{Effort, Found, Watch, has_price, lay_out, may_fit, price_all, pricers, search};
pub use space::{Batch, ModeSpace, NO_LEDGER, Space};
pub use verdicts::Verdicts;
