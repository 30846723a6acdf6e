// Lines of a terminal that are drawn again in the same place.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace nsa::client {

// The cursor is hidden while it lives. The block must not be higher than the terminal.
class LiveBlock {
 public:
  explicit LiveBlock(std::ostream* out) : out_(*out) { out_ << "\x1B[?25l"; }
  ~LiveBlock() { out_ << "\x1B[?25h" << std::flush; }
  LiveBlock(const LiveBlock&) = delete;
  LiveBlock& operator=(const LiveBlock&) = delete;

  // `above` stays on the screen above the block.
  void Draw(const std::string& above, const std::vector<std::string>& lines) {
    if (height_ > 0) out_ << "\x1B[" << height_ << "A";
    out_ << "\r\x1B[J" << above;
    for (const std::string& line : lines) out_ << line << "\n";
    out_ << std::flush;
    height_ = lines.size();
  }

 private:
  std::ostream& out_;
  size_t height_ = 0;
};

}  // namespace nsa::client
