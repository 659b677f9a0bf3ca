//! A generated matrix of layouts: every axis alone, and combinations of up to sixteen ranks, three
//! steps each, against one rank: losses, gradients, weights, bytes moved and bytes held.

mod rows;

use layout::LayoutRequest;
use recipe::Recipe;
use rows::{alone, recipes, together};
use runtime::rehearse::{Number, Outcome, Ranks, prepare, rehearse};

fn hold(recipe: &Recipe, request: &LayoutRequest, number: Number) {
    let ask = rows::ask(recipe, request, number, Ranks::Threads);
    let prepared = prepare(&ask).unwrap_or_else(|f| panic!("{request:?}: {f:#?}"));
    let what = format!("{} {number} {}", recipe.name.terminal(), prepared.layout.all_flags());
    let outcome = rehearse(&ask, &prepared, &|_| {}).unwrap_or_else(|f| panic!("{what}: {f:#?}"));
    let Outcome::Ran(r) = outcome else { panic!("{what} ended") };
    rows::judge(&what, &r);
}

#[test]
fn every_axis_alone() {
    let recipes = recipes();
    for (i, request) in alone().iter().enumerate() {
        hold(&recipes[0], request, Number::F64);
        hold(&recipes[1 + i % 2], request, Number::F64);
        hold(&recipes[i % 3], request, Number::F32);
    }
}

#[test]
fn axes_together_in_f64() {
    let (recipes, all) = (recipes(), together());
    assert!(all.len() >= 40, "{}", all.len());
    all.iter().enumerate().for_each(|(i, request)| hold(&recipes[i % 3], request, Number::F64));
}

#[test]
fn axes_together_in_f32() {
    let recipes = recipes();
    together()
        .iter()
        .enumerate()
        .skip(1)
        .step_by(4)
        .for_each(|(i, request)| hold(&recipes[i % 3], request, Number::F32));
}
