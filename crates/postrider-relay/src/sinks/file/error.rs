//! What can go wrong with a file.

use std::io;
use std::path::{Path, PathBuf};

use crate::sink::{Unavailable, UnavailableKind};

/// What was tried, on which file, and what the system said.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub(crate) struct FileError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// For `map_err`.
pub(crate) fn cannot(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Unavailable {
    let path = path.to_owned();
    move |source| Unavailable::new(kind(&source), FileError { action, path, source })
}

fn kind(error: &io::Error) -> UnavailableKind {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => UnavailableKind::Full,
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => UnavailableKind::Forbidden,
        Kind::NotFound | Kind::NotADirectory | Kind::IsADirectory | Kind::InvalidFilename => {
            UnavailableKind::Missing
        }
        _ => UnavailableKind::Connection,
    }
}
