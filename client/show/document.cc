#include "client/show/document.h"

#include <cctype>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

using Json = nlohmann::ordered_json;

// True for text that needs no quotes in YAML. Some YAML version reads a plain scalar as a number,
// boolean, null or date unless it begins with a letter or slash and is none of YAML's words.
bool IsPlain(const std::string& text) {
  if (text.empty() || text.size() > 200) return false;
  if (std::isalpha(static_cast<unsigned char>(text[0])) == 0 && text[0] != '/') return false;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && std::strchr("_-./", c) == nullptr) {
      return false;
    }
  }
  static constexpr const char* kWords[] = {"true", "false", "yes", "no",  "on", "off",
                                           "null", "y",     "n",   "inf", "nan"};
  std::string lower = text;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* word : kWords) {
    if (lower == word) return false;
  }
  return true;
}

std::string Scalar(const Json& value) {
  if (value.is_string() && IsPlain(value.get<std::string>())) return value.get<std::string>();
  // A JSON string is a YAML double-quoted scalar.
  return CleanJson(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

bool IsBlock(const Json& value) { return value.is_structured() && !value.empty(); }

void Append(const Json& value, int indent, std::string* text);

void AppendObject(const Json& object, int indent, bool first_inline, std::string* text) {
  for (const auto& [key, value] : object.items()) {
    if (!first_inline) text->append(indent, ' ');
    first_inline = false;
    absl::StrAppend(text, Scalar(key), ":");
    if (IsBlock(value)) {
      text->push_back('\n');
      Append(value, value.is_array() ? indent : indent + 2, text);
    } else {
      absl::StrAppend(text, " ", Scalar(value), "\n");
    }
  }
}

void Append(const Json& value, int indent, std::string* text) {
  if (!IsBlock(value)) {
    text->append(indent, ' ');
    absl::StrAppend(text, Scalar(value), "\n");
  } else if (value.is_object()) {
    AppendObject(value, indent, false, text);
  } else {
    for (const Json& element : value) {
      text->append(indent, ' ');
      if (IsBlock(element) && element.is_object()) {
        text->append("- ");
        AppendObject(element, indent + 2, true, text);
      } else if (IsBlock(element)) {
        text->append("-\n");
        Append(element, indent + 2, text);
      } else {
        absl::StrAppend(text, "- ", Scalar(element), "\n");
      }
    }
  }
}

}  // namespace

Json ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  // Fails only for Any of unknown types, which our messages do not have.
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return Json();
  return Json::parse(text, nullptr, false);
}

std::string JsonText(const Json& document, bool compact) {
  return CleanJson(document.dump(compact ? -1 : 2, ' ', false, Json::error_handler_t::replace)) +
         "\n";
}

std::string YamlText(const Json& document) {
  std::string text;
  Append(document, 0, &text);
  return text;
}

}  // namespace nsa::client
