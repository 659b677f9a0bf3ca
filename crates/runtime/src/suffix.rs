//! Prediction heads (MTP): depth `k` joins the hidden state with the embedding of the token `k` positions
//! on, runs a small stack of its own, and predicts the token after that with the model's own head.
//!
//! The join and its order: DeepSeek-V3's report, section 2.2, and Megatron-Core
//! `transformer/multi_token_prediction.py`. The join's columns are cut over the tensor axis and gathered
//! after it.

use crate::blocks::edges::{Embedding, Head};
use crate::blocks::norm::Norm;
use crate::blocks::{Cx, Linear};
use crate::mat::Mat;
use crate::model::Tokens;
use crate::params::Shelf;
use crate::rank::Rank;
use crate::real::Real;
use crate::saved::{Save, Saved, Sizes};
use crate::split::tensor;
use crate::stack::{Kept, Stack, residuals};
use comm::{Call, Result};
use diag::Finding;
use layout::{Axis, Layout, OwnershipTable};
use ledger::shardwright as declared;
use recipe::{Place, Recipe};

/// Weight of all depths together beside the main loss: Megatron's `mtp_loss_scaling_factor`.
pub(crate) const WEIGHT: f64 = 0.1;

const INTO: &str = "into the prediction join";
const WHOLE: Call = Call::new("tp", "columns of the prediction join");

/// One prediction depth.
pub(crate) struct Prediction<R> {
    place: Place,
    embedding: Embedding,
    embedding_norm: Norm,
    hidden_norm: Norm,
    join: Linear,
    stack: Stack<R>,
    final_norm: Norm,
    head: Place,
    hidden: usize,
    saves: Vec<Save>,
}

/// What one depth keeps of a microbatch.
pub(crate) struct Predicted<R> {
    /// Hidden state and embedding, the join's input, and the final norm's input.
    inputs: Saved<R>,
    blocks: Kept<R>,
    head: Saved<R>,
    pub loss: f64,
}

impl<R: Real> Predicted<R> {
    pub fn bytes(&self) -> u64 {
        self.inputs.bytes() + self.blocks.bytes() + self.head.bytes()
    }
}

impl<R: Real> Prediction<R> {
    pub fn new(
        recipe: &Recipe,
        layout: &Layout,
        table: &OwnershipTable,
        shelf: &mut Shelf,
        depth: usize,
    ) -> std::result::Result<Prediction<R>, Finding> {
        let (prefix, hidden) = (format!("mtp.{depth}"), recipe.hidden as usize);
        let mut stack = Stack::default();
        if let Some(mtp) = recipe.features.mtp() {
            stack.push(None, residuals(recipe, layout, table, shelf, &mtp.layer, &prefix, None)?);
        }
        let norm = |name: &str| Norm::new(shelf, &format!("{prefix}.{name}"), hidden);
        Ok(Prediction {
            place: Place::Mtp(depth),
            embedding: Embedding::new(recipe, shelf),
            embedding_norm: norm("embedding_norm"),
            hidden_norm: norm("hidden_norm"),
            join: Linear::new(shelf, &format!("{prefix}.join")),
            stack,
            final_norm: norm("final_norm"),
            head: if recipe.tied { Place::Embedding } else { Place::Head },
            hidden,
            saves: declared::prediction(recipe, &Sizes::of(layout)),
        })
    }

    fn places(&self) -> [Place; 3] {
        let second = if self.head == Place::Embedding { self.place } else { self.head };
        [Place::Embedding, second, self.place]
    }

    /// The depth's hidden state, which the next depth reads, and what was kept.
    pub fn forward(
        &self,
        cx: &mut Cx<R>,
        shelf: &Shelf,
        head: &Head,
        hidden: Mat<R>,
        tokens: &Tokens,
    ) -> Result<(Mat<R>, Predicted<R>)> {
        self.places().iter().try_for_each(|p| cx.open(*p))?;
        let mut inputs = Saved::new(self.saves.clone());
        let embedded = self.embedding.forward(cx, shelf, &tokens.input)?;
        let normed = [self.embedding_norm.forward(cx, &embedded), self.hidden_norm.forward(cx, &hidden)];
        let joined = tensor::enter(cx.rank, INTO, Mat::join(&[&normed[0], &normed[1]]))?;
        let x = whole_columns(cx.rank, self.join.partial(cx, &joined))?;
        let (x, blocks) = self.stack.forward(cx, x)?;
        let (loss, head) = head.forward(cx, shelf, self.final_norm.forward(cx, &x), tokens)?;
        let kept = [("mtp hidden", hidden), ("mtp embedding", embedded), ("mtp joined", joined)];
        kept.into_iter().for_each(|(name, value)| inputs.keep(name, value));
        inputs.keep("mtp final norm input", x.clone());
        self.places().iter().for_each(|p| cx.close(*p));
        Ok((x, Predicted { inputs, blocks, head, loss }))
    }

    /// Backward of [`Prediction::forward`]: the gradient of the hidden state it read. `dout` is the
    /// gradient that the next depth has for this one's output.
    pub fn backward(
        &self,
        cx: &mut Cx<R>,
        shelf: &Shelf,
        head: &Head,
        pass: Predicted<R>,
        tokens: &Tokens,
        dout: Option<Mat<R>>,
    ) -> Result<Mat<R>> {
        self.places().iter().try_for_each(|p| cx.open(*p))?;
        let Predicted { mut inputs, blocks, head: saved, .. } = pass;
        let dnormed = head.backward(cx, shelf, saved, tokens)?;
        let mut dx = self.final_norm.backward(cx, &inputs.take("mtp final norm input"), &dnormed);
        dout.iter().for_each(|d| dx.add(d));
        let dx = self.stack.backward(cx, blocks, dx)?;
        let dcolumns = whole_columns_back(cx.rank, dx)?;
        let djoined = self.join.partial_back(cx, &inputs.take("mtp joined"), &dcolumns);
        let djoined = tensor::enter_back(cx.rank, INTO, djoined)?;
        let parts = djoined.split(&[self.hidden, self.hidden]);
        let dembedded = self.embedding_norm.backward(cx, &inputs.take("mtp embedding"), &parts[0]);
        let dhidden = self.hidden_norm.backward(cx, &inputs.take("mtp hidden"), &parts[1]);
        self.embedding.backward(cx, shelf, &tokens.input, dembedded)?;
        self.places().iter().for_each(|p| cx.close(*p));
        Ok(dhidden)
    }
}

/// Gathers the columns of all tensor ranks, for this rank's own tokens.
fn whole_columns<R: Real>(rank: &Rank, columns: Mat<R>) -> Result<Mat<R>> {
    let (rows, cols, ranks) = (columns.rows, columns.cols, rank.tp.len());
    let all = rank.comm.all_gather(&rank.tp, WHOLE, columns.data)?;
    let (first, own) = own_rows(rank, rows);
    let mut out = Mat::zeros(own, cols * ranks);
    for (place, block) in all.chunks_exact(rows * cols).enumerate() {
        out.set_columns(place * cols, &Mat::of(cols, block[first * cols..(first + own) * cols].to_vec()));
    }
    Ok(out)
}

/// Transpose of [`whole_columns`]. With SP each rank has the gradient of its own tokens; without, every
/// rank has all of it and takes its columns.
fn whole_columns_back<R: Real>(rank: &Rank, d: Mat<R>) -> Result<Mat<R>> {
    let ranks = rank.tp.len();
    let cols = d.cols / ranks;
    if !rank.layout.sp {
        return Ok(d.columns(rank.on(Axis::Tp) * cols, cols));
    }
    let rows = d.rows * ranks;
    let (first, own) = own_rows(rank, rows);
    let mut sent = vec![R::ZERO; rows * d.cols];
    for place in 0..ranks {
        let at = (place * rows + first) * cols;
        sent[at..at + own * cols].copy_from_slice(&d.columns(place * cols, cols).data);
    }
    Ok(Mat::of(cols, rank.comm.reduce_scatter(&rank.tp, WHOLE, sent)?))
}

/// First row and number of rows of this rank's own tokens among the `rows` of its tensor group.
fn own_rows(rank: &Rank, rows: usize) -> (usize, usize) {
    if rank.layout.sp {
        let own = rows / rank.tp.len();
        (rank.on(Axis::Tp) * own, own)
    } else {
        (0, rows)
    }
}
