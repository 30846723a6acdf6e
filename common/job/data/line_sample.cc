#include "common/job/data/line_sample.h"

#include <algorithm>
#include <string_view>

#include "common/base/job_file.h"
#include "common/job/data/file_text.h"
#include "common/job/data/json_line.h"
#include "common/job/data_source.h"

namespace nsa {
namespace {

void AddLine(std::string_view line, std::string_view text_field, const RecordFilter* filter,
             LineSample* sample) {
  const auto bytes = static_cast<double>(line.size() + 1);
  sample->bytes += bytes;
  if (IsBlankJsonLine(line)) return;
  absl::StatusOr<JsonLine> record = JsonLine::Parse(line);
  if (!record.ok()) return;
  if (!record->Passes(filter, &sample->tally)) return;
  sample->passing += bytes;
  const auto text = record->TakeText(text_field);
  if (text.ok() && text->has_value()) sample->text += static_cast<double>((*text)->size());
}

}  // namespace

double LineSample::PassingShare() const {
  return bytes > 0 && (whole || passing > 0) ? passing / bytes : 1;
}

double LineSample::TextShare() const { return text > 0 ? text / passing : 1; }

LineSample SampleLines(const std::filesystem::path& path, const std::string& text_field,
                       const RecordFilter* filter, int64_t most) {
  // Of a file as it is, no more memory than it needs.
  const int64_t needed = IsCompressed(path.native()) ? most : JobFileBytes(path).value_or(0) + 1;
  const std::string head = TextHead(path, std::min(most, needed));
  const std::string_view field = text_field.empty() ? kDefaultTextField : text_field;
  LineSample sample;
  sample.whole = std::ssize(head) < most;
  for (size_t begin = 0; begin < head.size();) {
    const size_t end = head.find('\n', begin);
    if (end == std::string::npos && begin > 0 && !sample.whole) break;  // perhaps not a whole line
    AddLine(std::string_view(head).substr(begin, end - begin), field, filter, &sample);
    begin = end == std::string::npos ? head.size() : end + 1;
  }
  return sample;
}

}  // namespace nsa
