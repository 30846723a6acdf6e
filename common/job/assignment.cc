#include "common/job/assignment.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/job/text_check.h"
#include "common/job/yaml_tree.h"

namespace nsa {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr char kExample[] = "write e.g. train.steps=100";

// The end of the text in quotes that begins at `at`; npos if it has none.
size_t EndOfQuotes(std::string_view text, size_t at) {
  const char quote = text[at];
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == quote && quote == '\'' && i + 1 < text.size() && text[i + 1] == quote) {
      ++i;  // '' is one of them
    } else if (text[i] == quote) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

// Reads one part of the field, which ends before a '.' or '=', and moves `at` to its end.
absl::StatusOr<std::string> ReadPart(std::string_view text, size_t* at) {
  const size_t begin = *at;
  const bool quoted = begin < text.size() && (text[begin] == '"' || text[begin] == '\'');
  const size_t end = quoted ? EndOfQuotes(text, begin) : text.find_first_of(".=", begin);
  if (quoted && end == std::string_view::npos) {
    return absl::InvalidArgumentError("a quote is not closed; close it behind the name");
  }
  *at = std::min(end, text.size());
  const std::string_view part = text.substr(begin, *at - begin);
  if (!quoted) return std::string(part);
  if (*at < text.size() && text[*at] != '.' && text[*at] != '=') {
    return absl::InvalidArgumentError(
        "a quote ends within a name; put the whole name between dots in quotes");
  }
  std::vector<LoadError> errors;
  const YamlNode node = ParseYaml(part, &errors);
  if (!errors.empty()) return absl::InvalidArgumentError(errors.front().text);
  return node.scalar;
}

// The map that is the only thing in the values of the map `field`, as in data.val_where; else null.
const FieldDescriptor* MapWithin(const FieldDescriptor& field) {
  const Descriptor* const value = field.message_type()->map_value()->message_type();
  return value != nullptr && value->field(0)->is_map() ? value->field(0) : nullptr;
}

// Nothing is within the entry of a map, so what is left of the path is the entry's name.
void JoinNameInMap(std::vector<std::string>* path) {
  const Descriptor* type = v1::JobSpec::descriptor();
  for (size_t i = 0; type != nullptr && i + 1 < path->size(); ++i) {
    const FieldDescriptor* field = type->FindFieldByName((*path)[i]);
    if (field == nullptr) return;
    type = field->message_type();
    if (!field->is_map()) continue;
    size_t name = i + 1;
    while ((field = MapWithin(*field)) != nullptr) ++name;
    if (name >= path->size()) return;
    const auto first = path->begin() + static_cast<std::ptrdiff_t>(name);
    *first = absl::StrJoin(first, path->end(), ".");
    path->erase(first + 1, path->end());
    return;
  }
}

YamlNode ValueNode(std::string_view text, std::vector<LoadError>* errors) {
  const absl::string_view value =
      absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size()));
  if (!value.empty() && absl::string_view("[{\"'").find(value[0]) != absl::string_view::npos) {
    return ParseYaml({value.data(), value.size()}, errors);
  }
  YamlNode node{.place = {1, 1}};
  if (value.empty() || value == "~" || value == "null") return node;
  node.kind = YamlNode::Kind::kScalar;
  node.scalar = std::string(value);
  return node;
}

}  // namespace

absl::StatusOr<Assignment> ParseAssignment(std::string_view text) {
  if (const std::optional<LoadError> bad = CheckText(&text)) {
    return absl::InvalidArgumentError(bad->text);
  }
  Assignment assignment;
  size_t at = 0;
  do {
    if (!assignment.path.empty()) ++at;  // the dot
    NSA_ASSIGN_OR_RETURN(assignment.path.emplace_back(), ReadPart(text, &at));
    if (at == text.size()) {
      return absl::InvalidArgumentError(absl::StrCat("is not FIELD=VALUE; ", kExample));
    }
    if (assignment.path.back().empty()) {
      return absl::InvalidArgumentError(absl::StrCat("a name in FIELD is empty; ", kExample));
    }
  } while (text[at] == '.');
  assignment.field = std::string(text.substr(0, at));
  assignment.value = std::string(text.substr(at + 1));
  JoinNameInMap(&assignment.path);
  return assignment;
}

absl::StatusOr<LoadResult> LoadAssignment(const Assignment& assignment, std::string_view file,
                                          v1::JobSpec* spec) {
  std::vector<LoadError> errors;
  YamlNode node = ValueNode(assignment.value, &errors);
  for (auto name = assignment.path.rbegin(); name != assignment.path.rend(); ++name) {
    YamlNode around{.kind = YamlNode::Kind::kMap, .place = {1, 1}};
    YamlNode key{.kind = YamlNode::Kind::kScalar, .scalar = *name, .place = {1, 1}};
    around.entries.push_back({std::move(key), std::move(node)});
    node = std::move(around);
  }
  return LoadYamlTree(node, std::move(errors), file, spec);
}

}  // namespace nsa
