#include "common/job/data/byte_file.h"

#include <algorithm>

#include "common/base/status.h"

namespace nsa {

absl::StatusOr<std::string> ByteFile::Head(int64_t count) const {
  std::string head(static_cast<size_t>(std::min(count, size())), '\0');
  NSA_RETURN_IF_ERROR(ReadAt(0, head));
  return head;
}

}  // namespace nsa
