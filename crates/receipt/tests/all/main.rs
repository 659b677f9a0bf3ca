//! Tests of receipts over data that ships.

mod calibrate;
