#include "worker/train/data/read/passage_reader.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace nsa::train {

absl::StatusOr<bool> PassageReader::Next(std::string* passage) {
  if (passage_bytes_ == 0) return NextWhole(passage);
  // One byte more than the longest passage, because a newline there ends a passage too.
  NSA_RETURN_IF_ERROR(ReadAhead(4 * passage_bytes_ + 1));
  if (position_ >= content_.size()) return false;
  const size_t end = EndOfPassage();
  passage->assign(content_, position_, end - position_);
  begin_ = dropped_ + static_cast<int64_t>(position_);
  position_ = end;
  return true;
}

// Reads until `count` bytes from position_ on are there, or the stream ends.
absl::Status PassageReader::ReadAhead(size_t count) {
  while (!ended_ && content_.size() - position_ < count) {
    dropped_ += static_cast<int64_t>(position_);
    content_.erase(0, position_);
    position_ = 0;
    NSA_ASSIGN_OR_RETURN(const bool more, AppendChunk(stream_.get(), &content_));
    ended_ = !more;
  }
  return absl::OkStatus();
}

size_t PassageReader::EndOfPassage() const {
  if (content_.size() - position_ <= 2 * passage_bytes_) return content_.size();
  const size_t earliest = position_ + passage_bytes_;
  const size_t latest = std::min(content_.size(), position_ + 4 * passage_bytes_);
  // The search for a blank line ends at `latest`. Without this limit, every passage of a text
  // without blank lines would search everything that was read ahead.
  const std::string_view searched = std::string_view(content_).substr(0, latest);
  const size_t blank = searched.find("\n\n", earliest);
  const size_t blank_crlf = searched.substr(0, blank).find("\n\r\n", earliest);
  if (blank_crlf != std::string_view::npos) return blank_crlf + 3;
  if (blank != std::string_view::npos) return blank + 2;
  // Nor does the search for a newline go back beyond `earliest`.
  const size_t newline =
      std::string_view(content_).substr(earliest, latest + 1 - earliest).rfind('\n');
  return newline != std::string_view::npos ? earliest + newline + 1 : latest;
}

absl::StatusOr<bool> PassageReader::NextWhole(std::string* passage) {
  passage->clear();
  while (!ended_) {
    NSA_ASSIGN_OR_RETURN(const bool more, AppendChunk(stream_.get(), passage));
    ended_ = !more;
    if (passage->size() <= largest_) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: decompresses to a document of more than %d MiB; decompress the file, divide it, or "
        "write its documents as JSON lines",
        name_, largest_ >> 20));
  }
  return !passage->empty();
}

}  // namespace nsa::train
