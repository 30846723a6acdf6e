// What a command works with: the global flags, the streams it writes to, and the coordinator.
#pragma once

#include <functional>
#include <istream>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "client/connect/client.h"
#include "client/connect/interrupt.h"
#include "client/show/table.h"
#include "common/base/clock.h"
#include "nlohmann/json_fwd.hpp"

namespace nsa::client {

// -o.
enum class Format { kTable, kWide, kJson, kYaml, kName };

struct GlobalFlags {
  std::string address;
  std::string context;
  std::optional<double> timeout_seconds;
  Format format = Format::kTable;
  bool no_color = false;
  bool quiet = false;
};

// Where output goes.
struct Console {
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  bool terminal = false;         // `out` is one
  bool unicode = false;          // it shows UTF-8
  std::function<int()> columns;  // its width now; asked before each redraw
  std::istream* in = nullptr;
  bool can_ask = false;  // `in` and `err` are a terminal
};

class Session {
 public:
  Session(Console console, const Clock* clock, Interrupt* interrupt)
      : console_(std::move(console)), clock_(clock), interrupt_(interrupt) {}

  GlobalFlags& flags() { return flags_; }
  const Console& console() const { return console_; }
  std::ostream& out() { return *console_.out; }
  const Clock& clock() const { return *clock_; }
  absl::Time now() const { return clock_->Wall(); }
  Interrupt& interrupt() { return *interrupt_; }

  bool colours() const;
  bool wide() const { return flags_.format == Format::kWide; }
  // True for -o json and -o yaml.
  bool structured() const {
    return flags_.format == Format::kJson || flags_.format == Format::kYaml;
  }

  // The coordinator; opened at first use.
  absl::StatusOr<Client*> client();

  // Notes what the coordinator let its callers know, if a command has asked it anything.
  void NoteWarning();

  // Prints a note to the user on standard error; nothing with --quiet.
  void Note(const std::string& text);

  // Prints one whole document in the format of -o (json or yaml).
  void PrintDocument(const nlohmann::ordered_json& document);
  void PrintDocument(const google::protobuf::Message& message);
  // For a command about one thing: prints `message` with -o json or yaml, `name` with -o name, and
  // returns true. With another -o it prints nothing and returns false.
  bool PrintDocumentOrName(const google::protobuf::Message& message, const std::string& name);
  // Prints one document of a stream: JSON on one line, or YAML after `---`.
  void PrintStreamed(const nlohmann::ordered_json& document);
  void PrintStreamed(const google::protobuf::Message& message);
  void PrintTable(const Table& table) { out() << table.Format(colours()); }

 private:
  const Console console_;
  const Clock* const clock_;
  Interrupt* const interrupt_;
  GlobalFlags flags_;
  std::unique_ptr<Client> client_;
};

}  // namespace nsa::client
