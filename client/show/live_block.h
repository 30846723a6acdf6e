// Lines of a terminal that are drawn again in the same place.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <ostream>
#include <string>
#include <vector>

namespace nsa::client {

// The height of the terminal on standard output; 24 where there is none.
inline int TerminalRows() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0) return size.ws_row;
  return 24;
}

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
    out_ << "\r";
    if (!above.empty()) out_ << "\x1B[J" << above;
    // Each line covers the one before it, so that nothing flickers.
    for (const std::string& line : lines) out_ << line << "\x1B[K\n";
    out_ << "\x1B[J" << std::flush;
    height_ = lines.size();
  }

 private:
  std::ostream& out_;
  size_t height_ = 0;
};

}  // namespace nsa::client
