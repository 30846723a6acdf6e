// `nsactl top` on a terminal: draws what the feed has read, and does what the keys say.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/commands/view/top_feed.h"
#include "client/connect/keyboard.h"
#include "client/connect/session.h"
#include "client/exit_code.h"
#include "client/show/live_block.h"

namespace nsa::client {

class TopScreen {
 public:
  // The session and the client outlive it. `first` has been read.
  TopScreen(Session* session, Client* client, const v1::ListJobsRequest& wanted, TopState first);
  // Ends what it reads, by interrupting the session.
  ~TopScreen();

  // Until q or Ctrl-C. Without a terminal to read keys from, until Ctrl-C.
  absl::StatusOr<ExitCode> Run();

 private:
  using Picture = TopFeed::Picture;

  void Draw(const Picture& picture);
  std::vector<std::string> OpenLines(const OpenJob& open, bool connected) const;
  std::string LastLine() const;
  // Chooses a job that is shown, if any is.
  void Select(const Picture& picture, std::ptrdiff_t by);
  void Press(const KeyPress& press, const Picture& picture);
  void PressInList(const std::string& text, const Picture& picture);
  void Type(const KeyPress& press);
  void Ask(const Picture& picture);
  void Answer(const std::string& text);
  void Suspend();

  Session& session_;
  LiveBlock block_;
  const std::unique_ptr<Keyboard> keyboard_;  // null without a terminal to read from
  TopChoice choice_;
  std::string open_;              // the id of the job that is shown alone
  bool typing_ = false;           // the filter
  std::optional<v1::Job> asked_;  // whether to stop it
  std::string seen_;              // news that a key has wiped away
  bool quits_ = false;
  TopFeed feed_;
};

}  // namespace nsa::client
