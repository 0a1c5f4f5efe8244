use super::*;

#[tokio::test]
async fn unknown_paths_and_methods_are_refused() {
    let database = database().await;
    let world = World::over(&database.url()).await;
    let (code, body) = world.get("/etc/passwd").await;
    assert_eq!(code, 404);
    assert!(body.contains("/healthz?verbose"), "{body}");
    let (head, _) = request(
        world.address,
        "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    )
    .await;
    assert!(head.starts_with("HTTP/1.1 405"), "{head}");
    let (head, body) =
        request(world.address, "HEAD /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200") && body.is_empty(), "{head} {body}");
}

#[tokio::test]
async fn a_head_without_end_is_refused() {
    let database = database().await;
    let world = World::over(&database.url()).await;
    let long = format!("GET /livez HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "y".repeat(64 * 1024));
    let mut stream = TcpStream::connect(world.address).await.unwrap();
    // It may have hung up before everything was written.
    let _ = stream.write_all(long.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"), "{answer:?}");
    assert_eq!(world.get("/livez").await.0, 200);
}

/// Clients that never finish their request hold up a probe for a moment only.
#[tokio::test]
async fn heads_that_do_not_come_make_room() {
    let database = database().await;
    let world = World::over(&database.url()).await;
    let mut silent = Vec::new();
    for _ in 0..64 {
        let mut stream = TcpStream::connect(world.address).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
        silent.push(stream);
    }
    let answer = tokio::time::timeout(Duration::from_secs(8), world.get("/livez")).await;
    assert_eq!(answer.expect("there is room again").0, 200);
    drop(silent);
}

#[tokio::test]
async fn a_port_that_is_taken_is_unavailable() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = super::settings(taken.local_addr().unwrap(), watch::channel(CaptureStatus::default()).1);
    let options = sqlx::postgres::PgConnectOptions::new().into();
    let failure = serve(settings, Arc::new(Vec::new), options, future::pending()).await.unwrap_err();
    assert_eq!(failure.exit(), Exit::Unavailable);
    assert!(failure.to_string().contains("http.listen"), "{failure}");
}

#[tokio::test]
async fn it_ends_when_told_although_a_client_holds_on() {
    let database = database().await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let settings = super::settings(([127, 0, 0, 1], 0).into(), watch::channel(CaptureStatus::default()).1);
    let shutdown = async { drop(stopped.await) };
    let serving =
        serve(settings, Arc::new(Vec::new), database.url().parse().unwrap(), shutdown).await.unwrap();
    let mut holding = TcpStream::connect(serving.address).await.unwrap();
    holding.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert!(holding.read(&mut [0; 512]).await.unwrap() > 0);
    drop(stop);
    tokio::time::timeout(Duration::from_secs(10), serving.task).await.unwrap().unwrap();
    assert!(TcpStream::connect(serving.address).await.is_err());
}
