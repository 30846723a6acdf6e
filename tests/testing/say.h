// Prints lines for the test that started this program.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace nsa {

// Prints a line at once, with one call of write(), which disk_recorder.cc records.
inline void Say(const std::string& line) {
  const std::string text = line + "\n";
  if (write(STDOUT_FILENO, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    std::abort();
  }
}

}  // namespace nsa
