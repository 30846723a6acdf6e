#include "common/job/data/text_share.h"

#include <optional>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/job_file.h"
#include "common/job/data/file_text.h"
#include "common/job/data/json_line.h"
#include "common/job/data_source.h"

namespace nsa {
namespace {

std::string HeadOf(const std::filesystem::path& path, int64_t most) {
  const std::string name = path.filename();
  if (name.ends_with(".gz") || name.ends_with(".zst")) return UnpackedHead(path, most);
  const absl::StatusOr<Fd> file = OpenJobFile(path);
  return file.ok() ? ReadSome(file->get(), 0, most) : std::string();
}

}  // namespace

double TextShareOfLines(const std::filesystem::path& path, const std::string& text_field,
                        int64_t most) {
  const std::string head = HeadOf(path, most);
  const std::string_view field = text_field.empty() ? kDefaultTextField : text_field;
  double text = 0, all = 0;
  for (size_t begin = 0; begin < head.size();) {
    const size_t end = head.find('\n', begin);
    if (end == std::string::npos && begin > 0) break;  // perhaps not a whole line
    const std::string_view line = std::string_view(head).substr(begin, end - begin);
    const auto found = TextOfJsonLine(line, field);
    if (found.ok() && found->has_value()) text += static_cast<double>((*found)->size());
    all += static_cast<double>(line.size() + 1);
    begin = end == std::string::npos ? head.size() : end + 1;
  }
  return text > 0 ? text / all : 1;
}

}  // namespace nsa
