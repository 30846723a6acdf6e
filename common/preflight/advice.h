// What others have published for models of a size: by this preflight judges long runs (LR_ADVICE,
// BATCH_ADVICE), and `nsactl init` chooses.
#pragma once

#include <cstdint>

namespace nsa {

// Models under ten million parameters are not in the table of UsualLr(), and learn well with more.
inline constexpr int64_t kSmallestAdvisedModel = 10'000'000;

// Peak learning rate of AdamW for this many parameters: GPT-3, arXiv 2005.14165, table 2.1.
double UsualLr(double parameters);

// Muon's peak that learned best with 77 million parameters: docs/quality.md.
inline constexpr double kUsualMuonLr = 4e-3;

// More tokens a parameter than this gain little: Chinchilla, arXiv 2203.15556. From so many on, a
// learning rate that falls to 0 was better in every case: arXiv 2502.15938.
inline constexpr double kManyTokensPerParameter = 20;

// Text that is read this often is worth almost as much as new text: arXiv 2305.16264.
inline constexpr double kUsefulEpochs = 4;

}  // namespace nsa
