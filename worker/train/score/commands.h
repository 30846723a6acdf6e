// The commands `nsa-worker score`, `eval` and `sample`, on the device of `backend`.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "worker/train/score/sample.h"
#include "worker/train/score/score.h"

namespace nsa::train {

// Scores the file `text`, writes the file `output`, and prints a summary line on standard output:
//   12345 bytes, 12345 tokens: 2.1234 nats a token, 3.0634 bits a byte; step 5000
absl::Status ScoreCommand(const std::string& checkpoint, Backend backend, const TextFile& text,
                          const std::string& output);

// Prints loss, perplexity, bits a byte and the loss by context of the file `text`, or without one
// the losses by context of all validation sets of the model's job; with `json` it writes the
// numbers into this file instead, as one JSON object.
absl::Status EvaluateCommand(const std::string& checkpoint, Backend backend, const TextFile& text,
                             const std::string& json);

// Prints the prompt and its continuation as printable UTF-8 on standard output, each character as
// soon as its last byte is drawn. `prompt_file`, unless it is empty, has the prompt; "-" is
// standard input.
absl::Status SampleCommand(const std::string& checkpoint, Backend backend,
                           const std::string& prompt_file, SampleOptions options);

}  // namespace nsa::train
