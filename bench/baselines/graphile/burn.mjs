// Graphile Worker, working off jobs that do nothing, for `./dev bench jobs`.
//
//   node burn.mjs MODULES migrate URL
//   node burn.mjs MODULES fill URL N
//   node burn.mjs MODULES burn URL N    works N jobs off in its batching mode and prints the seconds it took
import { createRequire } from "node:module";

const [modules, command, connectionString, number] = process.argv.slice(2);
const require = createRequire(modules + "/");
const { makeWorkerUtils, run, Logger } = require("graphile-worker");
const { Pool } = require("pg");
const logger = new Logger(() => () => {});

if (command === "migrate") {
  const utils = await makeWorkerUtils({ connectionString, logger });
  await utils.migrate();
  await utils.release();
} else if (command === "fill") {
  const pool = new Pool({ connectionString });
  for (let left = Number(number); left > 0; left -= 5000) {
    // Row by row with add_job it would take minutes.
    await pool.query(
      `select count(*) from graphile_worker.add_jobs(array(
         select ('noop', json_build_object('n', g), null, null, null, null, null, null)::graphile_worker.job_spec from generate_series(1, $1::integer) g))`,
      [Math.min(left, 5000)],
    );
  }
  await pool.end();
} else {
  let left = Number(number);
  let finished;
  const done = new Promise((resolve) => (finished = resolve));
  const preset = {
    worker: {
      connectionString,
      logger,
      concurrentJobs: 24,
      maxPoolSize: 24,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  };
  const begin = process.hrtime.bigint();
  const runner = await run({
    preset,
    noHandleSignals: true,
    taskList: {
      noop() {
        if (--left === 0) finished();
      },
    },
  });
  await done;
  // Stopping waits until every completed job is deleted.
  await runner.stop();
  console.log((Number(process.hrtime.bigint() - begin) / 1e9).toFixed(6));
  process.exit(0);
}
