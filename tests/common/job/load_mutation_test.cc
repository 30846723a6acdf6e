// Mutates each line of a job file that has every key. The error must have the place, the field,
// what is wrong and what to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/job/load.h"
#include "tests/common/job/every_field.h"

namespace nsa {
namespace {

using google::protobuf::FieldDescriptor;

struct Line {
  int number = 0;  // 1-based
  std::string indent, key, value;
  std::string path;
  const FieldDescriptor* field = nullptr;
};

// The lines `key: value` in the output of ToYaml whose value is a scalar.
std::vector<Line> ScalarLines(const std::vector<std::string>& text) {
  std::vector<Line> lines;
  const google::protobuf::Descriptor* section = nullptr;
  std::string section_name;
  for (size_t i = 0; i < text.size(); ++i) {
    Line line;
    line.number = static_cast<int>(i) + 1;
    const size_t begin = text[i].find_first_not_of(' ');
    const size_t colon = text[i].find(':');
    if (begin == std::string::npos || colon == std::string::npos) continue;
    line.indent = text[i].substr(0, begin);
    line.key = text[i].substr(begin, colon - begin);
    line.value = text[i].size() > colon + 2 ? text[i].substr(colon + 2) : "";
    if (begin == 0) {
      line.field = v1::JobSpec::descriptor()->FindFieldByName(line.key);
      section = line.field->message_type();
      section_name = line.key;
      line.path = line.key;
    } else if (begin == 2 && section != nullptr && section->map_key() == nullptr) {
      line.field = section->FindFieldByName(line.key);
      line.path = absl::StrCat(section_name, ".", line.key);
    }
    const bool scalar = line.field != nullptr && !line.field->is_map() && !line.value.empty() &&
                        line.field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE;
    if (scalar) lines.push_back(line);
  }
  return lines;
}

// Wrong values for a field, depending on its type.
std::vector<std::string> WrongValues(const FieldDescriptor& field) {
  std::vector<std::string> wrong = {"{a: 1}", "", "&a 1", "*a", "!!str 1"};
  if (!field.is_repeated()) wrong.push_back("[1, 2]");
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
      for (const char* value : {"abc", "1.5", "\"5\"", "0777", "0x1F", "1_000", "1e3",
                                "99999999999999999999", "-", "--1", "true"}) {
        wrong.emplace_back(value);
      }
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      for (const char* value : {"abc", ".nan", "-.inf", "inf", "1e999", "\"0.5\"", "010", "1,5",
                                "1e", "0x1p3", "1 2"}) {
        wrong.emplace_back(value);
      }
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      for (const char* value : {"yes", "1", "tru", "\"true\""}) wrong.emplace_back(value);
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      for (const char* value : {"nonsense", "unspecified", "3", "BF16"}) wrong.emplace_back(value);
      break;
    default:
      break;
  }
  return wrong;
}

class Mutations : public testing::Test {
 protected:
  Mutations() : text_(absl::StrSplit(ToYaml(JobWithEveryField()), '\n')) {
    lines_ = ScalarLines(text_);
  }

  // The error for the file with line `number` replaced.
  std::string ErrorWith(int number, const std::string& replacement) {
    ++mutations_;
    std::vector<std::string> text = text_;
    text[number - 1] = replacement;
    v1::JobSpec spec;
    const auto result = LoadYamlText(absl::StrJoin(text, "\n"), "job.yaml", &spec);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << replacement;
    return std::string(result.status().message());
  }

  std::vector<std::string> text_;
  std::vector<Line> lines_;
  int mutations_ = 0;
};

TEST_F(Mutations, TheFileItselfLoadsAndHasEveryField) {
  v1::JobSpec spec;
  const auto result = LoadYamlText(absl::StrJoin(text_, "\n"), "job.yaml", &spec);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GE(lines_.size(), 60u);
}

TEST_F(Mutations, AWrongValueIsRefusedAtItsLineWithItsFieldAndAFix) {
  for (const Line& line : lines_) {
    for (const std::string& value : WrongValues(*line.field)) {
      const std::string mutated = absl::StrCat(line.indent, line.key, ": ", value);
      const std::string error = ErrorWith(line.number, mutated);
      EXPECT_TRUE(error.starts_with(absl::StrFormat("job.yaml:%d:", line.number)))
          << mutated << "\n"
          << error;
      // An error in the text as a whole has "yaml" instead of a field.
      EXPECT_TRUE(error.find(absl::StrCat(": ", line.path)) != std::string::npos ||
                  error.find(": yaml: ") != std::string::npos)
          << mutated << "\n"
          << error;
      EXPECT_THAT(error, testing::AnyOf(testing::HasSubstr("; "), testing::EndsWith("?")))
          << mutated;
    }
  }
  EXPECT_GE(mutations_, 400);
}

TEST_F(Mutations, AMisspeltKeyIsRefusedAndTheRightOneNamed) {
  for (const Line& line : lines_) {
    for (const std::string& key : {line.key + "x", line.key.substr(1) + line.key[0]}) {
      if (key == line.key) continue;
      const std::string mutated = absl::StrCat(line.indent, key, ": ", line.value);
      const std::string error = ErrorWith(line.number, mutated);
      EXPECT_TRUE(error.starts_with(
          absl::StrFormat("job.yaml:%d:%d: ", line.number, line.indent.size() + 1)))
          << mutated << "\n"
          << error;
      EXPECT_THAT(error, testing::HasSubstr("unknown key; ")) << mutated;
      if (line.key.size() >= 3 && key.back() == 'x') {
        EXPECT_THAT(error, testing::HasSubstr(absl::StrCat("'", line.key, "'"))) << mutated;
      }
    }
  }
  EXPECT_GE(mutations_, 100);
}

TEST_F(Mutations, AKeyGivenTwiceIsRefusedAtTheSecond) {
  for (const Line& line : lines_) {
    const std::string twice = absl::StrCat(text_[line.number - 1], "\n", text_[line.number - 1]);
    EXPECT_THAT(ErrorWith(line.number, twice),
                testing::StartsWith(absl::StrFormat(
                    "job.yaml:%d:%d: %s: given twice (first on line %d); remove one",
                    line.number + 1, line.indent.size() + 1, line.path, line.number)));
  }
}

TEST_F(Mutations, AKeyInTheWrongSectionIsSentToItsOwn) {
  std::set<std::string> top;
  for (const Line& line : lines_) {
    if (line.indent.empty()) top.insert(line.key);
  }
  int wrong = 0;
  for (const Line& line : lines_) {
    if (line.indent.empty() || line.path.starts_with("model.")) continue;
    // Insert the key into `model`. Every key exists in one section only, but sweep.name and name
    // are both keys; the second is meant more often.
    std::vector<std::string> text = text_;
    const auto model = std::find(text.begin(), text.end(), "model:");
    text.insert(model + 1, absl::StrCat("  ", line.key, ": ", line.value));
    v1::JobSpec spec;
    const auto result = LoadYamlText(absl::StrJoin(text, "\n"), "job.yaml", &spec);
    const std::string fix = top.contains(line.key)
                                ? absl::StrFormat("write %s: without indentation", line.key)
                                : absl::StrFormat("write it as %s", line.path);
    EXPECT_THAT(std::string(result.status().message()), testing::HasSubstr(fix));
    ++wrong;
  }
  EXPECT_GE(wrong, 40);
}

}  // namespace
}  // namespace nsa
