// The part of message.h about mails.
#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/clean_text.h"
#include "common/base/limits.h"
#include "common/estimate/state_title.h"
#include "server/decide/job_event.h"
#include "server/decide/problem/problems.h"
#include "server/notice/message/describe.h"
#include "server/notice/message/message.h"

namespace nsa::server {
namespace {

constexpr size_t kSubjectBytes = 200;
constexpr size_t kLineLength = 76;
// Of one word of RFC 2047, which has at most 75 characters: 45 bytes become 60 of base64.
constexpr size_t kWordBytes = 45;

bool IsPrintableAscii(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) { return c >= 0x20 && c < 0x7f; });
}

// The gravest event, of equally grave ones the last.
const Telling& Gravest(std::span<const Telling> tellings) {
  const Telling* gravest = &tellings.front();
  for (const Telling& telling : tellings) {
    if (telling.event.severity() >= gravest->event.severity()) gravest = &telling;
  }
  return *gravest;
}

std::string Subject(std::span<const Telling> tellings) {
  const Telling& telling = Gravest(tellings);
  const size_t others = tellings.size() - 1;
  const std::string subject =
      absl::StrCat("[nsa] ", ShownLine(telling.job->job().name()), " is ",
                   StateTitle(telling.event.state()), ", ", ShownLine(telling.event.reason()),
                   others == 0 ? "" : absl::StrFormat(" (and %d more)", others));
  return CutText(subject, kSubjectBytes);
}

std::string Progress(const v1::JobProgress& progress) {
  if (progress.step() <= 0) return "no step yet";
  std::string text = absl::StrFormat("step %d of %d, loss %.4g", progress.step(),
                                     progress.total_steps(), progress.loss());
  if (progress.val_step() > 0) {
    absl::StrAppendFormat(&text, ", validation %.4g", progress.val_loss());
  }
  return text;
}

std::string Paragraph(const Telling& telling, const Teller& teller) {
  const v1::JobEvent& event = telling.event;
  const v1::Job& job = telling.job->job();
  const std::string text = CutText(CleanText(event.text()), kJsonTextBytes);
  const std::string link = JobLink(job, teller);
  std::string paragraph =
      absl::StrFormat("%s is %s\n", ShownLine(job.name()), StateTitle(event.state()));
  const auto row = [&](const char* what, const std::string& value) {
    if (!value.empty()) absl::StrAppendFormat(&paragraph, "  %-10s%s\n", what, value);
  };
  row("reason", absl::StrCat(ShownLine(event.reason()), " (", SeverityName(event.severity()), ")"));
  row("at", absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixNanos(event.unix_nanos()),
                             absl::UTCTimeZone()));
  row("job", job.id());
  row("owner", ShownLine(job.owner()));
  row("rank", event.rank() < 0 ? "" : absl::StrCat(event.rank()));
  row("progress", Progress(job.progress()));
  row("page", link);
  if (const auto problem = ProblemOf(event, job); problem.has_value()) {
    row("cause", problem->cause());
    row("settings", ShownLine(problem->evidence()));
    for (const v1::Remedy& remedy : problem->remedies()) {
      row("try", absl::StrCat(ShownLine(remedy.command()), " (", remedy.text(), ")"));
    }
  }
  if (!text.empty()) absl::StrAppend(&paragraph, "\n", text, "\n");
  return paragraph;
}

// As one word of RFC 2047, or several that are joined without a blank.
std::string EncodedWords(std::string_view line) {
  std::string words;
  while (!line.empty()) {
    size_t end = std::min(line.size(), kWordBytes);
    while (end > 1 && end < line.size() && (static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) {
      --end;
    }
    absl::StrAppend(&words, words.empty() ? "" : "\n ", "=?UTF-8?B?",
                    absl::Base64Escape(absl::string_view(line.data(), end)), "?=");
    line.remove_prefix(end);
  }
  return words;
}

// The same events, sent again after a crash, have the same id, so that mail servers show one mail.
// With one more event the id is another. So is that of each sample.
std::string MessageId(std::span<const Telling> tellings, const Teller& teller, absl::Time now) {
  const std::string which =
      tellings.front().sample
          ? absl::StrCat("sample.", absl::ToUnixNanos(now))
          // The numbers of events begin again where a backup was restored, their times do not.
          : absl::StrCat(tellings.front().event.sequence(), "-", tellings.back().event.sequence(),
                         ".", tellings.back().event.unix_nanos());
  return absl::StrCat("nsa.", which, ".", teller.notice, "@", teller.host);
}

}  // namespace

std::string HeaderText(std::string_view line) {
  return IsPrintableAscii(line) ? std::string(line) : EncodedWords(line);
}

std::string QuotedPrintable(std::string_view text) {
  std::string encoded;
  size_t column = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\n') {
      encoded += '\n';
      column = 0;
      continue;
    }
    const bool ends_line = i + 1 == text.size() || text[i + 1] == '\n';
    const bool blank = byte == ' ' || byte == '\t';
    const bool plain = (byte > 0x20 && byte < 0x7f && byte != '=') || (blank && !ends_line);
    const size_t width = plain ? 1 : 3;
    if (column + width > kLineLength - 1) {
      encoded += "=\n";
      column = 0;
    }
    if (plain) {
      encoded += static_cast<char>(byte);
    } else {
      absl::StrAppendFormat(&encoded, "=%02X", byte);
    }
    column += width;
  }
  return encoded;
}

std::string MailMessage(std::span<const Telling> tellings, const Teller& teller,
                        const std::vector<std::string>& addresses, absl::Time now) {
  const int64_t sequence = tellings.front().event.sequence();
  std::string mail = absl::StrCat("To: ", absl::StrJoin(addresses, ",\n "), "\n");
  absl::StrAppend(&mail, "Subject: ", HeaderText(Subject(tellings)), "\n");
  absl::StrAppend(&mail, "Date: ", absl::FormatTime(absl::RFC1123_full, now, absl::UTCTimeZone()),
                  "\n");
  if (limits::IsPlainName(teller.host, limits::kNodeNameBytes)) {
    absl::StrAppend(&mail, "Message-ID: <", MessageId(tellings, teller, now), ">\n");
  }
  absl::StrAppend(&mail, "X-NSA-Delivery: ", sequence, "\n",
                  "Auto-Submitted: auto-generated\n"
                  "MIME-Version: 1.0\n"
                  "Content-Type: text/plain; charset=utf-8\n"
                  "Content-Transfer-Encoding: quoted-printable\n\n");
  std::string body;
  for (const Telling& telling : tellings.first(std::min(tellings.size(), kMostTogether))) {
    absl::StrAppend(&body, body.empty() ? "" : "\n\n", Paragraph(telling, teller));
  }
  absl::StrAppend(&body, "\n-- \nSent by the NSA coordinator on ", ShownLine(teller.host),
                  ", notice ", teller.notice, ".\n");
  return mail + QuotedPrintable(body);
}

}  // namespace nsa::server
