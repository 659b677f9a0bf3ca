//! `serve`: who may ask, and what may be read for them.

use clap::Args;
use std::net::IpAddr;
use std::path::PathBuf;

/// Arguments of `serve`.
#[derive(Args)]
pub struct ServeArgs {
    /// The port; 0 takes one that is free
    #[arg(long, value_name = "PORT", default_value_t = 8731)]
    pub port: u16,
    /// The address to listen at; any but loopback needs --token
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub bind: IpAddr,
    /// Recipes, configs and device files below this folder may be asked about, by their paths in it (default: none are
    /// read)
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// What has to be shown to be answered: `Authorization: Bearer TOKEN`, or `/?token=TOKEN` once in a browser
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// Receipts in this store may be asked about (default: none)
    #[arg(long, value_name = "DIR")]
    pub receipts: Option<PathBuf>,
    /// Read the page's files from here instead of from the program, to work on them
    #[arg(long, value_name = "DIR")]
    pub assets: Option<PathBuf>,
    /// Print what may be asked, as OpenAPI 3.1, and serve nothing
    #[arg(long, exclusive = true)]
    pub openapi: bool,
}
