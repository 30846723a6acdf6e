#include "common/job/data/json_line.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clean_text.h"
#include "common/base/json_shape.h"
#include "common/base/status.h"
#include "common/job/data_source.h"
#include "nlohmann/json.hpp"

namespace nsa {
namespace {

using Json = nlohmann::json;

// A value takes about 64 bytes, so a line of two-byte values takes thirty times its size.
constexpr size_t kLargeLine = 16 << 20;

constexpr std::string_view kBlank = " \t\r\x1e";
constexpr std::string_view kFix = "fix the file, or set data.source to what it holds";

// The names of an object's fields, for messages: "id, meta, url".
std::string FieldsOf(const Json& object) {
  constexpr size_t kMost = 20;
  std::vector<std::string> names;
  for (const auto& field : object.items()) {
    if (names.size() == kMost) {
      names.emplace_back("…");
      break;
    }
    names.push_back(CleanLine(CutText(field.key(), 100)));
  }
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

constexpr std::string_view kText =
    "each line must be a JSON object with a string field of the name data.text_field, in UTF-8";
constexpr std::string_view kConversation =
    "each line must be a JSON object with a list of messages, each with the texts role and "
    "content, or with the texts prompt and completion, in UTF-8";

absl::Status Fault(std::string_view what, std::string_view line, std::string_view wanted,
                   std::string_view fix) {
  const std::string begin = absl::CHexEscape(std::string(line.substr(0, 60)));
  return absl::InvalidArgumentError(absl::StrCat(std::string(what), ": '", begin, "' (",
                                                 std::string(wanted), "); ", std::string(fix)));
}

// The code unit of the escape \uXXXX at the front of `text`; nothing if there is none.
std::optional<uint32_t> UnitAt(std::string_view text) {
  if (!text.starts_with("\\u") || text.size() < 6) return std::nullopt;
  uint32_t unit = 0;
  for (const char c : text.substr(2, 4)) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return std::nullopt;
    const int digit = absl::ascii_isdigit(static_cast<unsigned char>(c))
                          ? c - '0'
                          : absl::ascii_tolower(static_cast<unsigned char>(c)) - 'a' + 10;
    unit = unit << 4 | static_cast<uint32_t>(digit);
  }
  return unit;
}

// Takes an escape from the front of `rest` and appends it, or U+FFFD for half of a surrogate pair.
void TakeEscape(std::string_view* rest, std::string* out) {
  const auto is = [](std::optional<uint32_t> unit, uint32_t first) {
    return unit && *unit >= first && *unit < first + 0x400;
  };
  const std::optional<uint32_t> unit = UnitAt(*rest);
  const bool high = is(unit, 0xd800);
  const bool pair = high && is(UnitAt(rest->substr(6)), 0xdc00);
  const size_t length = std::min<size_t>(pair ? 12 : unit ? 6 : 2, rest->size());
  const bool half = (high && !pair) || is(unit, 0xdc00);
  *out += half ? "\\ufffd" : rest->substr(0, length);
  rest->remove_prefix(length);
}

// The length of a number at the front of `rest` that no double can hold, such as 1e400; 0 for
// anything else.
size_t LargeNumber(std::string_view rest) {
  const size_t length = std::min(rest.find_first_not_of("+-.0123456789eE"), rest.size());
  double value = 0;
  const bool number =
      length > 0 && absl::SimpleAtod(absl::string_view(rest.data(), length), &value);
  return number && std::isinf(value) ? length : 0;
}

// A line that is no JSON, with null for the numbers that JSON lacks or that are too large, and
// U+FFFD for halves of surrogate pairs.
std::string Repaired(std::string_view rest) {
  std::string out;
  out.reserve(rest.size());
  bool quoted = false;
  while (!rest.empty()) {
    if (quoted && rest[0] == '\\') {
      TakeEscape(&rest, &out);
      continue;
    }
    size_t number = 0;
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
      if (!quoted && rest.starts_with(word)) number = word.size();
    }
    // Not within a number or word that began before.
    const bool begins = out.empty() || !(absl::ascii_isalnum(out.back()) || out.back() == '.' ||
                                         out.back() == '-' || out.back() == '+');
    if (!quoted && number == 0 && begins) number = LargeNumber(rest);
    if (number > 0) {
      out += "null";
      rest.remove_prefix(number);
      continue;
    }
    if (rest[0] == '"') quoted = !quoted;
    out += rest[0];
    rest.remove_prefix(1);
  }
  return out;
}

// Null if there is no such field. A name that is there with its dots comes first.
Json* FindField(Json* object, std::string_view name) {
  while (object->is_object()) {
    if (const auto found = object->find(std::string(name)); found != object->end()) return &*found;
    const size_t dot = name.find('.');
    if (dot == std::string_view::npos) return nullptr;
    const auto outer = object->find(std::string(name.substr(0, dot)));
    if (outer == object->end()) return nullptr;
    if (outer->is_null()) return &*outer;
    object = &*outer;
    name.remove_prefix(dot + 1);
  }
  return nullptr;
}

// False if a value of the list is neither a text nor null.
bool JoinTexts(const Json& list, std::optional<std::string>* text) {
  for (const Json& element : list) {
    if (element.is_null()) continue;
    if (!element.is_string()) return false;
    if (text->has_value()) **text += kBetweenElements;
    if (!text->has_value()) text->emplace();
    **text += element.get_ref<const std::string&>();
  }
  return true;
}

// The object of a line, from whose front what is no JSON is removed.
absl::StatusOr<Json> ObjectOf(std::string_view* rest, std::string_view wanted) {
  std::string_view& line = *rest;
  if (line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
  line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
  if (line.starts_with('[')) {
    return Fault("a JSON array, not an object", line, wanted,
                 "if the file is one array, jq -c '.[]' FILE > NEW makes JSON lines of it");
  }
  if (line.size() > kLargeLine && !IsAsLargeAsItLooks(line)) {
    return Fault(absl::StrCat("a line of ", line.size(), " bytes with too many values (at most ",
                              "one for each 4 bytes, and an object for each 128)"),
                 line, wanted, "leave out the fields that are not texts");
  }
  Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    json = Json::parse(Repaired(line), nullptr, /*allow_exceptions=*/false);
  }
  if (json.is_discarded() && line.find_first_not_of(kBlank, 1) == std::string_view::npos) {
    return Fault("not valid JSON", line, wanted,
                 "if each object takes several lines, jq -c . FILE > NEW makes one of them");
  }
  if (json.is_discarded()) return Fault("not valid JSON", line, wanted, kFix);
  if (!json.is_object()) return Fault("not a JSON object", line, wanted, kFix);
  return json;
}

}  // namespace

bool IsBlankJsonLine(std::string_view line) {
  return line.find_first_not_of(kBlank) == std::string_view::npos;
}

JsonLine::JsonLine(std::string_view line, std::unique_ptr<Json> json)
    : line_(line), json_(std::move(json)) {}
JsonLine::~JsonLine() = default;
JsonLine::JsonLine(JsonLine&&) noexcept = default;

absl::StatusOr<JsonLine> JsonLine::Parse(std::string_view line, bool conversation) {
  NSA_ASSIGN_OR_RETURN(Json json, ObjectOf(&line, conversation ? kConversation : kText));
  return JsonLine(line, std::make_unique<Json>(std::move(json)));
}

std::optional<FieldValue> JsonLine::ValueOf(std::string_view field) const {
  const Json* const value = FindField(json_.get(), field);
  if (value == nullptr) return std::nullopt;
  switch (value->type()) {
    case Json::value_t::string:
      return TextValue(value->get_ref<const std::string&>());
    case Json::value_t::boolean:
      return BoolValue(value->get<bool>());
    case Json::value_t::number_integer:
      return NumberValue(value->get<int64_t>());
    case Json::value_t::number_unsigned:
      return NumberValue(value->get<uint64_t>());
    case Json::value_t::number_float:
      return NumberValue(value->get<double>());
    default:
      return std::nullopt;
  }
}

bool JsonLine::Passes(const RecordFilter* filter, FilterTally* tally) const {
  if (filter == nullptr) return true;
  return filter->Passes([&](size_t i) { return ValueOf(filter->conditions()[i].name()); }, tally);
}

absl::StatusOr<std::optional<std::string>> JsonLine::TakeText(std::string_view text_field) {
  const std::string_view line = line_;
  Json& json = *json_;
  Json* const value = FindField(&json, text_field);
  const std::string field(text_field);
  if (value == nullptr) {
    return Fault(absl::StrCat("no field '", field, "' (fields: ", FieldsOf(json), ")"), line, kText,
                 "set data.text_field, or fix the file");
  }
  std::optional<std::string> text;
  if (value->is_null() || (value->is_array() && JoinTexts(*value, &text))) return text;
  if (value->is_string()) return std::move(value->get_ref<std::string&>());
  return Fault(absl::StrCat("the field '", field, "' is not a string"), line, kText, kFix);
}

absl::StatusOr<std::optional<std::vector<ChatMessage>>> JsonLine::TakeMessages(
    std::string_view messages_field) {
  const std::string_view line = line_;
  Json& json = *json_;
  const std::string field(messages_field);
  Json* const list = FindField(&json, messages_field);
  Json* const prompt = FindField(&json, kPromptField);
  Json* const completion = FindField(&json, kCompletionField);
  std::optional<std::vector<ChatMessage>> messages;
  if (list == nullptr && (prompt == nullptr || completion == nullptr)) {
    return Fault(absl::StrCat("no field '", field, "', nor ", std::string(kPromptField), " and ",
                              std::string(kCompletionField), " (fields: ", FieldsOf(json), ")"),
                 line, kConversation, "set data.text_field, or rename the fields");
  }
  if (list == nullptr) {
    if (prompt->is_null() || completion->is_null()) return messages;
    if (!prompt->is_string() || !completion->is_string()) {
      return Fault("prompt or completion is not a string", line, kConversation, kFix);
    }
    return std::vector<ChatMessage>{{"user", std::move(prompt->get_ref<std::string&>())},
                                    {"assistant", std::move(completion->get_ref<std::string&>())}};
  }
  if (list->is_null()) return messages;
  if (!list->is_array()) {
    return Fault(absl::StrCat("the field '", field, "' is not a list"), line, kConversation, kFix);
  }
  if (list->empty()) {
    return Fault(absl::StrCat("the field '", field, "' is an empty list"), line, kConversation,
                 "leave the conversation out");
  }
  messages.emplace();
  for (Json& message : *list) {
    Json* const role = FindField(&message, "role");
    Json* const content = FindField(&message, "content");
    if (role == nullptr || content == nullptr || !role->is_string() || !content->is_string()) {
      return Fault(absl::StrCat(field, "[", messages->size(),
                                "] is not an object with the texts role and content (fields: ",
                                message.is_object() ? FieldsOf(message) : "none", ")"),
                   line, kConversation, "rename the fields, or leave the conversation out");
    }
    messages->push_back(
        {std::move(role->get_ref<std::string&>()), std::move(content->get_ref<std::string&>())});
  }
  return messages;
}

absl::StatusOr<std::optional<std::string>> TextOfJsonLine(std::string_view line,
                                                          std::string_view text_field) {
  NSA_ASSIGN_OR_RETURN(JsonLine json, JsonLine::Parse(line));
  return json.TakeText(text_field);
}

absl::StatusOr<std::optional<std::vector<ChatMessage>>> MessagesOfJsonLine(
    std::string_view line, std::string_view messages_field) {
  NSA_ASSIGN_OR_RETURN(JsonLine json, JsonLine::Parse(line, /*conversation=*/true));
  return json.TakeMessages(messages_field);
}

std::string TextOfMessages(const std::vector<ChatMessage>& messages) {
  std::string text;
  for (const ChatMessage& message : messages) {
    if (!text.empty()) text += kBetweenElements;
    absl::StrAppend(&text, message.role, ": ", message.content);
  }
  return text;
}

}  // namespace nsa
