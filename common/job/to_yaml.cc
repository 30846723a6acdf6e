#include <cctype>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/job/flat_keys.h"
#include "common/job/load.h"

namespace nsa {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// True if every YAML reader reads the unquoted text as this string.
bool IsPlain(const std::string& text) {
  if (text.empty() || text.size() > 512) return false;
  const auto first = static_cast<unsigned char>(text[0]);
  if (!std::isalpha(first) && first != '/' && first != '_') return false;
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (u >= 0x80 ||
        (!std::isalnum(u) && std::string_view("_-./+=@").find(c) == std::string::npos)) {
      return false;
    }
  }
  static constexpr std::string_view kWords[] = {"true", "false", "null", "yes", "no",
                                                "on",   "off",   "y",    "n"};
  std::string lower;
  for (const char c : text) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string_view word : kWords) {
    if (lower == word) return false;
  }
  return true;
}

// One value of a field: element `index` of a repeated field, or the value of a singular one (-1).
std::string Scalar(const Message& message, const FieldDescriptor& field, int index) {
  const std::string text = ScalarText(message, field, index);
  return field.cpp_type() == FieldDescriptor::CPPTYPE_STRING ? YamlScalar(text) : text;
}

class Printer {
 public:
  std::string Print(const Message& message) {
    Fields(message, 0, false);
    return out_.empty() ? "{}\n" : out_;
  }

 private:
  // `first_inline`: the first line follows a "- " that has already been written.
  void Fields(const Message& message, int indent, bool first_inline) {
    std::vector<const FieldDescriptor*> fields;
    message.GetReflection()->ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      out_ += first_inline ? "" : std::string(indent, ' ');
      first_inline = false;
      absl::StrAppend(&out_, field->name(), ":");
      Value(message, *field, indent);
    }
    if (first_inline) out_ += "{}\n";
  }

  void Value(const Message& message, const FieldDescriptor& field, int indent) {
    if (field.is_map()) return Map(message, field, indent);
    if (field.is_repeated()) return List(message, field, indent);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      const Message& section = message.GetReflection()->GetMessage(message, &field);
      std::vector<const FieldDescriptor*> fields;
      section.GetReflection()->ListFields(section, &fields);
      if (fields.empty()) {
        out_ += " {}\n";
      } else {
        out_ += "\n";
        Fields(section, indent + 2, false);
      }
      return;
    }
    absl::StrAppend(&out_, " ", Scalar(message, field, -1), "\n");
  }

  void List(const Message& message, const FieldDescriptor& field, int indent) {
    const Reflection& reflection = *message.GetReflection();
    const int size = reflection.FieldSize(message, &field);
    if (size == 0) {  // of an entry of a map
      out_ += " []\n";
      return;
    }
    const bool of_messages = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    const bool flow = !of_messages && field.cpp_type() != FieldDescriptor::CPPTYPE_STRING;
    if (flow) {
      out_ += " [";
      for (int i = 0; i < size; ++i) {
        absl::StrAppend(&out_, i == 0 ? "" : ", ", Scalar(message, field, i));
      }
      out_ += "]\n";
      return;
    }
    out_ += "\n";
    for (int i = 0; i < size; ++i) {
      out_ += std::string(indent + 2, ' ') + "- ";
      if (of_messages) {
        Fields(reflection.GetRepeatedMessage(message, &field, i), indent + 4, true);
      } else {
        absl::StrAppend(&out_, Scalar(message, field, i), "\n");
      }
    }
  }

  // Sorted by key, so that the same message always gives the same text. A message as a value is
  // written as its only field.
  void Map(const Message& message, const FieldDescriptor& field, int indent) {
    const Reflection& reflection = *message.GetReflection();
    if (reflection.FieldSize(message, &field) == 0) {
      out_ += " {}\n";
      return;
    }
    const auto& type = *field.message_type();
    const FieldDescriptor& value = *type.map_value();
    std::map<std::string, const Message*> entries;
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
      entries[Scalar(entry, *type.map_key(), -1)] = &entry;
    }
    out_ += "\n";
    for (const auto& [key, entry] : entries) {
      absl::StrAppend(&out_, std::string(indent + 2, ' '), key, ":");
      if (value.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
        absl::StrAppend(&out_, " ", Scalar(*entry, value, -1), "\n");
        continue;
      }
      const Message& inner = entry->GetReflection()->GetMessage(*entry, &value);
      Value(inner, *inner.GetDescriptor()->field(0), indent + 2);
    }
  }

  std::string out_;
};

}  // namespace

std::string YamlScalar(const std::string& text) {
  if (IsPlain(text)) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        quoted += "\\\"";
        break;
      case '\\':
        quoted += "\\\\";
        break;
      case '\n':
        quoted += "\\n";
        break;
      case '\t':
        quoted += "\\t";
        break;
      case '\r':
        quoted += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
          absl::StrAppendFormat(&quoted, "\\x%02X", static_cast<unsigned char>(c));
        } else {
          quoted += c;
        }
    }
  }
  return quoted + "\"";
}

std::string ToYaml(const Message& message) { return Printer().Print(message); }

}  // namespace nsa
