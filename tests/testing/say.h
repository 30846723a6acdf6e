// What a program that a test started tells it on standard output.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace nsa {

// A line, out at once and by one call of write(), which disk_recorder.cc sees.
inline void Say(const std::string& line) {
  const std::string text = line + "\n";
  if (write(STDOUT_FILENO, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    std::abort();
  }
}

}  // namespace nsa
