// What a notice says: JSON, a text for Slack, an e-mail. Pure.
//
// Names and texts come from users and their programs. They are cleaned (common/base/clean_text.h),
// cut at a limit between characters, and escaped for what shows them: no text can add a header to a
// mail, markup or a mention of people to a chat.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "nsa/v1/job_status.pb.h"
#include "nsa/v1/store.pb.h"

namespace nsa::server {

// An event to deliver, and its job as it is now.
struct Telling {
  v1::JobEvent event;
  std::shared_ptr<const v1::StoredJob> job;
  bool sample = false;  // made up, to try a notice
};

// The sender.
struct Teller {
  std::string notice;    // its name
  std::string host;      // of the coordinator
  std::string page_url;  // beginning of links to the live page, with a slash; empty: no links
};

// How many events one mail or one message of a chat has at most. A request with JSON has one.
inline constexpr size_t kMostTogether = 20;

// The longest text of an event, in bytes; longer ones are cut and end with "…".
inline constexpr size_t kJsonTextBytes = 4'000;
inline constexpr size_t kChatTextBytes = 1'000;

// The layout of docs/formats.md, format_version 1.
std::string JsonMessage(const Telling& telling, const Teller& teller);

// {"text": …}: a line for each event, at most 128 KiB.
std::string SlackMessage(std::span<const Telling> tellings, const Teller& teller);

// A mail with its header, lines end with "\n": From is left to the program that sends it. `now` is
// its date.
std::string MailMessage(std::span<const Telling> tellings, const Teller& teller,
                        const std::vector<std::string>& addresses, absl::Time now);

// `text` for Slack: &, < and > are escaped, and @ at the beginning of a word mentions nobody.
std::string SlackText(std::string_view text);

// One line of a mail's header: as it is if it is printable ASCII, else as words of RFC 2047.
std::string HeaderText(std::string_view line);

// RFC 2045: lines of at most 76 characters.
std::string QuotedPrintable(std::string_view text);

}  // namespace nsa::server
