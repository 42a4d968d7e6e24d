//! A disk that is full.
