//! How full a queue is, as a person is warned of it: at 50, 80 and 95 percent of a limit, once each way.

/// Where a person is warned.
const LEVELS: [u8; 3] = [50, 80, 95];
/// So far below a level it is over: a queue that moves around one warns once.
const MARGIN: u8 = 5;

/// The highest level that was reached and is not over; 0 below all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Filling(u8);

impl Filling {
    pub(crate) fn level(self) -> u8 {
        self.0
    }

    /// Whether the level is another one now.
    pub(crate) fn moved(&mut self, percent: u8) -> bool {
        let reached = |by: u8| LEVELS.into_iter().rfind(|level| percent >= level - by).unwrap_or(0);
        // Up at a level, down only where it is over.
        let level = self.0.clamp(reached(0), reached(MARGIN - 1));
        let moved = level != self.0;
        self.0 = level;
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_is_told_once_each_way() {
        let mut filling = Filling::default();
        let mut told = Vec::new();
        for percent in
            [0, 49, 50, 48, 50, 46, 79, 80, 76, 84, 80, 95, 100, 91, 95, 90, 76, 75, 46, 45, 0, 100, 0]
        {
            if filling.moved(percent) {
                told.push((percent, filling.level()));
            }
        }
        let expected = [(50, 50), (80, 80), (95, 95), (90, 80), (75, 50), (45, 0), (100, 95), (0, 0)];
        assert_eq!(told, expected);
    }
}
