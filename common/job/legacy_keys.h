// Job files of the Python system: keys that have no effect or another name here, keys that counted
// something else there, and defaults that such files rely on. docs/job_file.md has the list for
// users.
#pragma once

#include <string_view>

#include "common/job/load.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

struct LegacyRule {
  std::string_view field;        // "runtime.use_flash"; a trailing * matches any ending
  std::string_view replacement;  // the key of the same section to use instead, or empty
  std::string_view why;          // what happens with the key and why, for a warning
};

// The rule for a field path; null if it is not a key of the Python system.
const LegacyRule* FindLegacyRule(std::string_view field);

// Gives a file of the Python system the meaning that it had there. A file is one of them if
// `result` has legacy keys; otherwise nothing happens. Every change, and every value that is
// assumed, adds a note to `result`; a change is shown as "old → new".
//
//   steps, log_every, eval_every, save_every
//       counted micro-steps; divided by accumulate_grad_batches
//   batch_size
//       was each rank's; multiplied by the ranks
//   resources.gpus, if absent
//       was an option of torchrun; from the file's name (my_2xa100_run.yaml: 2), else 1
//   n_layers, weight_decay, min_lr_ratio, betas, phi, gate, if absent
//       1, 0, 0, [0.9, 0.999], avg, softmax
//
// `file` is the file's name or path.
void CompleteLegacyFile(std::string_view file, LoadResult* result, v1::JobSpec* spec);

}  // namespace nsa
