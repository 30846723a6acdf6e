#include "client/commands/data/show_data.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/show/human.h"
#include "common/base/clean_text.h"
#include "common/job/data/data_files.h"
#include "common/job/enum_words.h"

namespace nsa::client {
namespace {

// "4.21"; "-" if one of them is not known.
std::string BytesPerToken(int64_t bytes, int64_t tokens) {
  if (bytes == 0 || tokens == 0) return "-";
  return absl::StrFormat("%.2f", static_cast<double>(bytes) / static_cast<double>(tokens));
}

std::string Counted(int64_t count, const std::string& one, const std::string& several) {
  return absl::StrCat(WithCommas(count), " ", count == 1 ? one : several);
}

std::string DocumentsText(const v1::InspectedSet& set) {
  std::vector<std::string> notes;
  if (set.duplicates() > 0) {
    notes.push_back(Counted(set.duplicates(), "copy of another", "copies of others"));
  }
  if (set.blank() > 0) notes.push_back(absl::StrCat(WithCommas(set.blank()), " blank"));
  if (set.null_rows() > 0) {
    notes.push_back(
        Counted(set.null_rows(), "row without a text skipped", "rows without a text skipped"));
  }
  const std::string count = WithCommas(set.documents());
  return notes.empty() ? count : absl::StrCat(count, " (", absl::StrJoin(notes, ", "), ")");
}

std::string LengthsText(const v1::LengthSummary& lengths) {
  return absl::StrCat("least ", WithCommas(lengths.least()), ", median ",
                      WithCommas(lengths.median()), ", 90 % up to ", WithCommas(lengths.p90()),
                      ", most ", WithCommas(lengths.most()));
}

std::string SetText(const v1::InspectedSet& set) {
  const std::string source =
      EnumWord(*v1::DataSource_descriptor()->FindValueByNumber(set.source()));
  std::string text = absl::StrCat(CleanLine(set.name()), ": ", source, ", ",
                                  Counted(set.files(), "file", "files"));
  if (set.empty_files() > 0) absl::StrAppend(&text, " (", WithCommas(set.empty_files()), " empty)");
  text += "\n";
  const auto add = [&](const std::string& name, const std::string& value) {
    absl::StrAppend(&text, absl::StrFormat("  %-12s", name), value, "\n");
  };
  add("documents", DocumentsText(set));
  if (set.text_bytes() > 0) add("text", HumanBytes(set.text_bytes()));
  if (set.tokens() > 0) {
    const std::string bytes = BytesPerToken(set.text_bytes(), set.tokens());
    add("tokens", absl::StrCat(WithCommas(set.tokens()),
                               bytes == "-" ? "" : absl::StrCat(" (", bytes, " bytes a token)")));
  }
  if (set.answer_tokens() > 0) {
    add("answers", absl::StrCat(WithCommas(set.answer_tokens()), " tokens"));
  }
  if (set.tokens() > 0) add("largest", absl::StrCat("token ", WithCommas(set.largest_token())));
  if (set.document_bytes().most() > 0) add("bytes each", LengthsText(set.document_bytes()));
  if (set.document_tokens().most() > 0) add("tokens each", LengthsText(set.document_tokens()));
  for (const std::string& sample : set.sample()) add("begins", CleanLine(sample));
  for (const v1::DataWarning& warning : set.warnings()) {
    add("warning", CleanLine(WarningText(warning)));
  }
  return text;
}

}  // namespace

Table PreparedTable(const v1::PreparedData& prepared) {
  Table table({{"FOLDER"},
               {"FILES", true},
               {"EMPTY", true},
               {"DOCUMENTS", true},
               {"TOKENS", true},
               {"BYTES A TOKEN", true},
               {"NULL ROWS", true},
               {"SIZE", true}});
  for (const v1::PreparedSet& set : prepared.sets()) {
    table.Add({set.folder(), WithCommas(set.files()), WithCommas(set.empty_files()),
               WithCommas(set.documents()), WithCommas(set.tokens()),
               BytesPerToken(set.text_bytes(), set.tokens()), WithCommas(set.null_rows()),
               HumanBytes(set.bytes())});
  }
  return table;
}

std::string InspectionText(const v1::DataInspection& inspection) {
  std::vector<std::string> texts;
  for (const v1::InspectedSet& set : inspection.sets()) texts.push_back(SetText(set));
  return absl::StrJoin(texts, "\n");
}

}  // namespace nsa::client
