#pragma once

// Bugs that engines of this kind have really had. A simulation must find each of them: that of the
// scheduler, or that of replicas behind a door (route/testing/). They are compiled in only where
// BT_PLANTED_BUGS is defined, which is the simulations' own copies of what they simulate.

namespace baltoro {

enum class PlantedBug {
  kNone,
  kLostAbortWhileWaitingAgain,  // the final event of an aborted, preempted request is lost
  kLeakOnAbortWhileEvicting,    // blocks of a request aborted while it was preempted stay taken
  kReleaseWhileInFlight,        // blocks are given back while a step in flight writes them
  kDoubleFinish,                // abort, then the stop in the step in flight, both end the request
  kTokenAfterAbort,             // the step in flight still delivers its token
  kKeepFailedBlocks,            // blocks written by a failed step become findable
  kNameBeforeComputed,          // blocks become findable when planned
  kIgnoreSalt,                  // prefixes are shared across salts
  kHitCoversWholePrompt,        // nothing is left to compute, so nothing is ever sampled
  kRefusedDraftsCount,          // positions of refused drafts count as computed
  kStopIgnoredAmongDrafts,      // accepted drafts after a stop are delivered
  kUnboundedPreemption,         // nobody is protected after eight preemptions
  kStuckAfterPreemption,        // a preempted sequence is not queued again
  kQueueUnbounded,              // the limit of waiting requests is not checked
  kOvertakeHead,                // what fits is admitted past a head that does not
  kPlanBeyondLength,            // tokens in flight do not count towards max_tokens
  kPlanAheadInPipeline,         // stages are told to compute a token that they do not know yet
  kShareSampledTokens,          // blocks of sampled tokens are found as parts of prompts
  kHitInsideChunk,              // a prefix ends inside of a chunk that is always computed whole
  kChunkAsRoomIsLeft,           // a chunk is cut where the step's tokens end
  kSampledTokensAsPrompt,       // after a preemption sampled tokens are computed with the prompt
  kVictimByArrivalAlone,        // the newest sequence gives up its blocks, however urgent
  kRunningAsAdmitted,           // running sequences are served in the order of their admission
  kAdmitWhileEvicting,          // others come in before a preempted sequence is queued again
  kAdmitWithoutLogprobRows,     // admitted, but the step has no row left for its prompt
  kQueueByArrivalAlone,         // the queue ignores priorities: urgent requests starve
  kRequeuedAsNew,               // a preempted sequence goes to the end of the queue
  kUrgentOnceRequeued,          // a preempted sequence loses its priority
  kProtectedNotFirst,           // after eight preemptions a sequence is served like any other
  kPromptsHoldDecodes,          // some of those who decode wait while a prompt is computed
  kOneAdmissionAPlan,           // requests wait though there is room for them
  kAbortInQueueKeepsCount,      // aborted requests count as waiting for ever
  kSaltLostAfterPreemption,     // a preempted sequence finds prefixes of others' salts
  kUncountedLogprobRows,        // prompts of admitted sequences take no row of log-probabilities
  kCostsNeverChange,            // what a step may cost changed, plans did not hear of it
  kOwnersIgnored,               // requests are served by arrival, whoever's they are
  kIdleOwnerSaves,              // an owner that was idle goes before all others for as long
  kOutputIsFree,                // owners are charged for what was expected, not for what came
  kPromptsBeforeNewcomers,      // who is admitted waits for the prompts of those who run
  kDraftsHoldDecodes,           // drafts of some leave no token of the step for others
  kDraftsNotReserved,           // a draft model finds no block behind the last token
  kReservedBeyondLength,        // blocks are taken for positions that the request never has
  kEncodedTooEarly,             // a picture is read before all layers have seen it
  kPicturesUnnamed,             // the name of a block does not say which picture stands in it
  kPicturesKept,                // a sequence that leaves holds its pictures for ever
  kPictureHoldsQueue,           // the queue waits for the picture that its head begins with
  kChunkIgnoresContext,         // a chunk late in its prompt costs as much as one at its beginning

  // Of the steps of replicas that share experts.
  kStepLeavesThinkersBehind,  // a step begins while a replica makes its plan
  kRestIsNotHeard,            // who has nothing to do is waited for
  kStepsOfNobody,             // steps are computed though no replica has a plan
  kResultsToldAgain,          // ranks hear of a result with each plan that follows
  kAdmitsBesideFull,          // requests are admitted though a replica is full
  kAdmitsBeforeAllSaid,       // likewise, where that one has not said so yet
  kRefusedIsForgotten,        // who may not admit requests now is not waited for in the next step

  // Of replicas behind one door.
  kMovesWhatIsAnswered,    // a request goes elsewhere though the client has tokens of it
  kMovesWhatIsAborted,     // likewise, though its client has gone
  kMovesForEver,           // no end to the replicas that a request can take with it
  kMovedStillCounts,       // a request counts for the replica that lost it, too
  kRefusedStillCounts,     // likewise, for one that refused it
  kAnsweredStillWaits,     // the prompt of a request that is answered counts as waiting
  kRefusedStaysOpen,       // a request that no replica takes is kept
  kHomelessIsForgotten,    // a request that no other replica takes never hears so
  kStartedAgain,           // a client hears twice that its request left the queue
  kAbortBesideSubmission,  // an abort is lost that comes while a replica is given the request
  kFullEndsTheSearch,      // a request is refused though the next replica has room
  kAsksTheSilent,          // requests go to a replica that gives no sign of life
  kKnownOutlivesReplica,   // a replica that began anew counts as knowing prompts
  kEventsOfOneForAll,      // what replicas of one engine tell is taken for the first one's
};

#ifdef BT_PLANTED_BUGS
extern PlantedBug planted_bug;
inline bool Planted(PlantedBug bug) {
  return planted_bug == bug;
}
#else
constexpr bool Planted(PlantedBug) {
  return false;
}
#endif

}  // namespace baltoro
