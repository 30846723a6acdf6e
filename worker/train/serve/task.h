// A request whose prompts are tokens that fit the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "worker/train/serve/request.h"

namespace nsa::train::serve {

struct Task {
  CompletionRequest request;
  // As they were sent: with the separator only where the client wrote it, or in front of a chat.
  std::vector<std::vector<int32_t>> prompts;
  std::vector<int64_t> most;  // tokens to generate after each prompt
  // Whether the first token of a prompt has a space that its text has not; empty for a chat.
  std::vector<bool> added_space = {};
  // Of a chat.
  std::vector<int32_t> stop_tokens = {};  // end the answer and are not part of it
  std::string lead = {};  // what an answer begins with by its format; not part of it

  // request.n for each prompt, those of the first prompt first.
  size_t choices() const { return prompts.size() * static_cast<size_t>(request.n); }
};

}  // namespace nsa::train::serve
