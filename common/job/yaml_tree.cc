#include "common/job/yaml_tree.h"

#include <exception>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/job/text_check.h"
#include "yaml-cpp/anchor.h"
#include "yaml-cpp/emitterstyle.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/exceptions.h"
#include "yaml-cpp/mark.h"
#include "yaml-cpp/parser.h"

namespace nsa {
namespace {

// Thrown through the parser to stop it at once; ParseYaml catches it.
struct StopParsing {
  LoadError error;
};

SourcePlace PlaceOf(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1}; }

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string_view text, std::vector<LoadError>* errors)
      : text_(text), errors_(errors) {}

  YamlNode TakeRoot() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) {
      throw StopParsing{
          {PlaceOf(mark), "yaml", "a second document starts here; keep one document in a file"}};
    }
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    RefuseAnchor(mark, anchor);
    RefuseTag(mark, "!");  // the parser reports a lone `!` as null
    Attach(Node(mark, YamlNode::Kind::kNull));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Refuse(mark, "alias (*name); write the value out");
    Attach(Node(mark, YamlNode::Kind::kNull));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    RefuseAnchor(mark, anchor);
    RefuseTag(mark, tag);
    YamlNode node = Node(mark, YamlNode::Kind::kScalar);
    node.scalar = WithUtf8Escapes(value);
    node.quoted = tag == "!";
    Attach(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    RefuseAnchor(mark, anchor);
    RefuseTag(mark, tag);
    Open(Node(mark, YamlNode::Kind::kSequence));
  }
  void OnSequenceEnd() override { Close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    RefuseAnchor(mark, anchor);
    RefuseTag(mark, tag);
    Open(Node(mark, YamlNode::Kind::kMap));
  }
  void OnMapEnd() override { Close(); }

 private:
  struct Frame {
    YamlNode node;
    std::optional<YamlNode> key;  // of a map: the key whose value has not been read yet
  };

  YamlNode Node(const YAML::Mark& mark, YamlNode::Kind kind) {
    if (++values_ > kMaxYamlValues) {
      throw StopParsing{
          {PlaceOf(mark), Path(),
           absl::StrFormat("more than %d values; is this the right file?", kMaxYamlValues)}};
    }
    YamlNode node;
    node.kind = kind;
    node.place = PlaceOf(mark);
    return node;
  }

  void Open(YamlNode node) {
    if (stack_.size() >= kMaxYamlDepth) {
      throw StopParsing{{node.place, Path(),
                         absl::StrFormat("more than %d levels of nesting; is this the right file?",
                                         kMaxYamlDepth)}};
    }
    stack_.push_back({std::move(node), std::nullopt});
  }

  void Close() {
    YamlNode done = std::move(stack_.back().node);
    stack_.pop_back();
    Attach(std::move(done));
  }

  void Attach(YamlNode node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = stack_.back();
    if (frame.node.kind == YamlNode::Kind::kSequence) {
      frame.node.items.push_back(std::move(node));
    } else if (!frame.key) {
      frame.key = std::move(node);
    } else {
      frame.node.entries.push_back({*std::move(frame.key), std::move(node)});
      frame.key.reset();
    }
  }

  // The path of keys to the value that is being read; "yaml" if there are none.
  std::string Path() const {
    std::string path;
    for (const Frame& frame : stack_) {
      if (frame.key && frame.key->kind == YamlNode::Kind::kScalar) {
        absl::StrAppend(&path, path.empty() ? "" : ".", CutText(frame.key->scalar, 64));
      }
    }
    return path.empty() ? "yaml" : path;
  }

  void Refuse(const YAML::Mark& mark, std::string text) {
    errors_->push_back({PlaceOf(mark), Path(), std::move(text)});
  }
  void RefuseAnchor(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != 0) Refuse(mark, "anchor (&name); remove it and write the values out");
  }
  // yaml-cpp reports "?" for no tag and "!" for a quoted scalar, but also "!" for a lone `!`.
  void RefuseTag(const YAML::Mark& mark, const std::string& tag) {
    const auto offset = static_cast<size_t>(mark.pos);
    const bool lone = tag == "!" && offset < text_.size() && text_[offset] == '!';
    if (lone || (!tag.empty() && tag != "?" && tag != "!")) {
      Refuse(mark, absl::StrCat("tag ", tag, "; remove it, the field determines the type"));
    }
  }

  std::string_view text_;
  std::vector<LoadError>* errors_;
  std::vector<Frame> stack_;
  YamlNode root_;
  int documents_ = 0;
  size_t values_ = 0;
};

// A TAB in the indentation of 1-based `line`; nothing when there is none.
std::optional<SourcePlace> TabIn(std::string_view text, int line) {
  size_t start = 0;
  for (int i = 1; i < line; ++i) {
    const size_t end = text.find('\n', start);
    if (end == std::string_view::npos) return std::nullopt;
    start = end + 1;
  }
  for (size_t at = start; at < text.size() && (text[at] == ' ' || text[at] == '\t'); ++at) {
    if (text[at] == '\t') return SourcePlace{line, static_cast<int>(at - start) + 1};
  }
  return std::nullopt;
}

// What the parser says about text that is not YAML. It reports a TAB in the indentation as
// something else, in its line or the next.
LoadError SyntaxError(std::string_view text, const YAML::Exception& e) {
  const SourcePlace place = PlaceOf(e.mark);
  for (const int line : {place.line, place.line - 1}) {
    if (const auto tab = line > 0 ? TabIn(text, line) : std::nullopt) {
      return {*tab, "yaml",
              "a TAB in the indentation; YAML wants spaces, write two for each level"};
    }
  }
  return {place, "yaml",
          absl::StrCat(e.msg, "; check indentation, colons and quotes here and in the line above")};
}

}  // namespace

YamlNode ParseYaml(std::string_view text, std::vector<LoadError>* errors) {
  if (std::optional<LoadError> bad = CheckText(&text)) {
    errors->push_back(*std::move(bad));
    return {};
  }
  TreeBuilder builder(text, errors);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const StopParsing& stop) {
    errors->push_back(stop.error);
  } catch (const YAML::Exception& e) {
    errors->push_back(SyntaxError(text, e));
  } catch (const std::exception& e) {
    errors->push_back({{1, 1}, "yaml", absl::StrCat(e.what(), "; this is not YAML")});
  }
  return builder.TakeRoot();
}

}  // namespace nsa
